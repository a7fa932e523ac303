// Branches: two runs may go on from the same checkpoints without seeing each other, each on tiers that the other cannot
// reach. Both use the same attempt numbers then, and even the same names of versions. One branch decides what is live;
// what only the other has is set aside, never deleted. docs/decisions/0021-two-branches.md has the reasons.
// Plain values and functions without state. Thread rule: as TierOverlay::move_on().
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tiers/tier_overlay.hpp"
#include "version/attempt.hpp"
#include "version/catalog.hpp"

namespace slackwater {

struct Branches {
  std::size_t decides = 0;  // the tier whose newest attempt says what is live
  std::uint32_t deciding_attempt = 0;
  // Of each tier that is not in line with that attempt: its own catalog, and what its own run did there.
  struct Other {
    std::size_t tier = 0;
    Attempt attempt;
    bool forked = false;  // two runs have the same number
    Catalog catalog;
    std::vector<VersionName> hidden;  // in the overlay, until unite() has put them in their place
  };
  std::vector<Other> others;
};

// Before the overlay is scanned. `newest`: by tier, its newest attempt. Hides from the overlay what belongs to another
// branch than the one that decides.
[[nodiscard]] Result<Branches> settle_branches(TierOverlay& overlay, const std::map<std::size_t, Attempt>& newest);

// After the scan. Puts what was hidden into the catalog as set aside, and sets aside what would count as replaced
// although its own tier says that it is live. Returns one sentence per branch that was set aside, for the user.
[[nodiscard]] std::vector<std::string> unite(TierOverlay& overlay, const Branches& branches, Catalog& catalog);

// After that. A version that the deciding attempt has not adopted counts as replaced. But nobody asked for a rollback
// behind it unless an attempt says so: a tier may have been out of reach when a run went on. If its own tier knows it
// to be live, it is live; otherwise it is set aside. Returns sentences for the user.
[[nodiscard]] std::vector<std::string> keep_unseen(const TierOverlay& overlay,
                                                   const std::map<std::size_t, Attempt>& newest,
                                                   const Branches& branches, Catalog& catalog);

}  // namespace slackwater
