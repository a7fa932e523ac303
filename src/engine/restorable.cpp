#include "engine/restorable.hpp"

#include <fmt/format.h>

namespace slackwater {

std::vector<CatalogEntry> restorable(const Catalog& catalog, std::optional<std::uint64_t> step) {
  std::vector<CatalogEntry> candidates;
  std::vector<CatalogEntry> aside;
  for (const CatalogEntry& entry : catalog.entries) {
    if (step && entry.name.step != *step) continue;
    if (entry.belongs()) candidates.push_back(entry);
    if (step && entry.state == VersionState::kSetAside) aside.push_back(entry);
  }
  return candidates.empty() ? aside : candidates;
}

bool is_damage(const Error& error) { return error.kind == ErrorKind::kCorrupt; }

std::string listed(const std::vector<VersionInfo>& versions) {
  std::string text;
  for (const VersionInfo& version : versions) text += fmt::format("{}{}", text.empty() ? "" : ", ", version.step);
  return text.empty() ? "none" : text;
}

}  // namespace slackwater
