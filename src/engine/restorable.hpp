// What restoring alone and restoring together have in common. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "commit/catalog.hpp"
#include "slackwater/error.hpp"

namespace slackwater {

inline constexpr const char* kUndefinedState = "; the state was partly overwritten and is undefined";

// Versions that may be tried, oldest first. An unreadable manifest is a damaged version, unless a newer program wrote
// it.
[[nodiscard]] std::vector<CatalogEntry> restorable(const Catalog& catalog, std::optional<std::uint64_t> step);

// Damage that another version may not have; everything else is the caller's business.
[[nodiscard]] bool is_damage(const Error& error);

// "40, 41", or "none".
[[nodiscard]] std::string listed(const std::vector<VersionInfo>& versions);

}  // namespace slackwater
