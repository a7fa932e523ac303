#include "version/garbage.hpp"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

namespace slackwater {
namespace {

// A number above every attempt. Nobody else has the lock, so all of them are over.
std::uint32_t attempt_after_all(const Catalog& catalog, std::uint32_t newest) {
  for (const CatalogEntry& entry : catalog.entries) newest = std::max(newest, entry.name.attempt);
  return newest == std::numeric_limits<std::uint32_t>::max() ? newest : newest + 1;
}

// Whether the newest attempt has committed, durably: its run may have died before it synced the decision, so sync it
// here. If the attempt's file cannot be read, which versions are live is a guess, and a guess must not delete anything.
bool newest_has_committed(FileSystem& fs, const std::string& root, const Catalog& catalog) {
  if (!catalog.newest_attempt) return false;
  const std::vector<VersionInfo> live = catalog.live_versions();
  return std::ranges::any_of(live, [&](const VersionInfo& version) {
    return version.attempt == catalog.newest_attempt->number &&
           fs.sync_directory(fmt::format("{}/{}", root, version.directory)).has_value();
  });
}

}  // namespace

std::vector<Removal> find_garbage(FileSystem& fs, const std::string& root, const Catalog& catalog,
                                  std::uint32_t newest_attempt) {
  std::vector<Removal> removals = leftovers(catalog, Sweeper{.attempt = attempt_after_all(catalog, newest_attempt),
                                                             .committed = newest_has_committed(fs, root, catalog)});
  std::erase_if(removals, [&](const Removal& removal) {
    const auto entry = std::ranges::find(catalog.entries, removal.version, &CatalogEntry::name);
    return entry == catalog.entries.end() || entry->info.pinned;
  });
  return removals;
}

}  // namespace slackwater
