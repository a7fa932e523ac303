// TierIdentity: whether a lower tier is the place that it was before. An unmounted directory looks like a new, empty
// tier, and so does one that was emptied. So each lower tier has an id of its own, in .slackwater/tier.json, and tier 0
// remembers it in .slackwater/tier-<digest of the location>.json. Both are written once.
// Functions without state. Thread rule: any thread, one per tier.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "os/file_system.hpp"
#include "slackwater/error.hpp"
#include "tiers/tier_overlay.hpp"

namespace slackwater {

inline constexpr const char* kTierIdFile = "tier.json";
inline constexpr std::uint64_t kMaxTierIdBytes = 64u << 10;
// What tier 0 remembers of a lower tier at this root: the name of the file.
[[nodiscard]] std::string known_tier_file(const std::string& root);

// The path of the file on tier 0 that remembers another place under this location. nullopt: it is the same place, or
// tier 0 remembers none. A damaged file remembers none.
[[nodiscard]] Result<std::optional<std::string>> remembers_another(const TierPlace& tier_0, const TierPlace& tier);
// Gives the tier an id, if it has none, and lets tier 0 remember it. Call it when remembers_another() says nullopt.
[[nodiscard]] Status remember_tier(const TierPlace& tier_0, const TierPlace& tier);

}  // namespace slackwater
