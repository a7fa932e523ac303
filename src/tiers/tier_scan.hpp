// scan_tiers(): which versions are live, over several tiers. The newest attempt on any of them decides (after a fork,
// see tier_branches.hpp), and a version is there if one of them has its manifest. It only reads. Functions without
// state. Thread rule: any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "slackwater/error.hpp"
#include "tiers/tier_overlay.hpp"
#include "version/catalog.hpp"
#include "version/delete_notes.hpp"

namespace slackwater {

struct TierScan {
  Catalog catalog;
  std::uint32_t newest_attempt = 0;    // on any tier that was reached
  std::vector<std::string> set_aside;  // sentences on what is not continued (tier_branches.hpp)
  std::vector<std::string> deleted;    // one per version that is left out, because a lower tier has still to delete it
};

// A tier that does not exist yet is empty. The caller has left out those that cannot be reached (tier_probes.hpp), and
// one whose attempts cannot be read is left out here. Whoever finds nothing to restore must say so, instead of "there
// is no checkpoint". What delete() removed from tier 0, and a lower tier still has, is not in the catalog
// (version/delete_notes.hpp). A damaged manifest or attempt file comes from the next tier that has it. It fails if none
// can be reached. It may be called again.
// `deleted`: what this process has deleted, whether or not tier 0 can say so now.
[[nodiscard]] Result<TierScan> scan_tiers(TierOverlay& overlay, const std::vector<DeleteNote>& deleted = {});

// "the tier /nfs/run cannot be reached: ..."; the overlay has left out at least one.
[[nodiscard]] Error unreachable_tiers(const TierOverlay& overlay);

}  // namespace slackwater
