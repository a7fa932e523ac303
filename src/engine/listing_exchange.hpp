// How several ranks restore from an object store with one list: rank 0 lists, and sends the names to the others. A rank
// that hears nothing in time lists by itself, so a failure costs time and requests, nothing more.
// Functions without state. Thread rule: the trainer's thread, in restore().
#pragma once

#include <cstdint>
#include <vector>

#include "engine/engine_shared.hpp"
#include "tiers/tier_overlay.hpp"

namespace slackwater {

// `call`: the number of this rank's restore() call. Returns at once if no tier is in an object store.
void share_listings(EngineShared& shared, const std::vector<TierPlace>& tiers, std::uint64_t call);

}  // namespace slackwater
