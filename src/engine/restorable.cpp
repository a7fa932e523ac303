#include "engine/restorable.hpp"

#include <fmt/format.h>

namespace slackwater {

std::vector<CatalogEntry> restorable(const Catalog& catalog, std::optional<std::uint64_t> step) {
  std::vector<CatalogEntry> candidates;
  for (const CatalogEntry& entry : catalog.entries) {
    const bool damaged = entry.state == VersionState::kUnreadable && entry.current;
    if (entry.state != VersionState::kCounts && !damaged) continue;
    if (step && entry.name.step != *step) continue;
    candidates.push_back(entry);
  }
  return candidates;
}

bool is_damage(const Error& error) {
  return error.kind == ErrorKind::kCorrupt || error.kind == ErrorKind::kIo || error.kind == ErrorKind::kNotFound;
}

std::string listed(const std::vector<VersionInfo>& versions) {
  std::string text;
  for (const VersionInfo& version : versions) text += fmt::format("{}{}", text.empty() ? "" : ", ", version.step);
  return text.empty() ? "none" : text;
}

}  // namespace slackwater
