// scan_tiers(): which versions are live, over several tiers. The newest attempt on any of them decides, and a version
// is there if one of them has its manifest. It only reads. Functions without state. Thread rule: any thread.
#pragma once

#include "slackwater/error.hpp"
#include "tiers/tier_overlay.hpp"
#include "version/catalog.hpp"

namespace slackwater {

// A tier that does not exist yet is empty. One that cannot be reached is left out of the overlay from here on
// (left_out()): whoever finds nothing to restore must say so, instead of "there is no checkpoint". A damaged manifest
// or attempt file comes from the next tier that has it. It fails if none can be reached.
[[nodiscard]] Result<Catalog> scan_tiers(TierOverlay& overlay);

// "the tier /nfs/run cannot be reached: ..."; the overlay has left out at least one.
[[nodiscard]] Error unreachable_tiers(const TierOverlay& overlay);

}  // namespace slackwater
