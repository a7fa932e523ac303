#include "version/manifest_cache.hpp"

#include <algorithm>
#include <utility>

namespace slackwater {

std::optional<ManifestCache::Entry> ManifestCache::find(const VersionName& version) const {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(version);
  if (found == entries_.end()) return std::nullopt;
  return found->second;
}

void ManifestCache::put(const VersionName& version, Entry entry) {
  const std::lock_guard lock(mutex_);
  entries_.insert_or_assign(version, std::move(entry));
}

void ManifestCache::erase(const VersionName& version) {
  const std::lock_guard lock(mutex_);
  entries_.erase(version);
}

void ManifestCache::keep_only(const std::vector<VersionName>& versions) {
  const std::lock_guard lock(mutex_);
  std::erase_if(entries_, [&](const auto& entry) { return !std::ranges::binary_search(versions, entry.first); });
}

VersionInfo version_info(const Manifest& manifest) {
  return {.step = manifest.step,
          .attempt = manifest.attempt,
          .directory = version_directory({manifest.step, manifest.attempt}),
          .world = manifest.world,
          .size_bytes = manifest.size_bytes,
          .tensor_count = manifest.tensor_count,
          .created_unix_ms = manifest.created_unix_ms,
          .metrics = manifest.metrics};
}

}  // namespace slackwater
