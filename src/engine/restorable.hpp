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

// Versions that may be tried, oldest first. One whose manifest cannot be read is among them, so that it is not passed over
// without a word. One that was set aside is tried only when its step is asked for and no live version has it.
[[nodiscard]] std::vector<CatalogEntry> restorable(const Catalog& catalog, std::optional<std::uint64_t> step);

// The bytes are not those that were promised, or are gone: another version may be whole. Storage that cannot be read is not
// damage; it may be readable tomorrow.
[[nodiscard]] bool is_damage(const Error& error);

// "40, 41", or "none".
[[nodiscard]] std::string listed(const std::vector<VersionInfo>& versions);

}  // namespace slackwater
