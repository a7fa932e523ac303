// ManifestCache: what the manifests of a tier say, so that each one is read only once. A manifest never changes and a
// name is never reused, so an entry only has to be erased when its version is deleted. Use it only while holding the
// tier's lock: nobody else deletes then.
// Owned by whoever scans or deletes (VersionStore, the CLI). Thread rule: thread-safe.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "slackwater/checkpoint.hpp"
#include "version/manifest.hpp"
#include "version/names.hpp"

namespace slackwater {

class ManifestCache {
 public:
  struct Entry {
    Decision decision = Decision::kCommit;
    VersionInfo info;  // `pinned` is not set
    std::string run = {};
  };

  [[nodiscard]] std::optional<Entry> find(const VersionName& version) const;
  void put(const VersionName& version, Entry entry);
  void erase(const VersionName& version);
  void keep_only(const std::vector<VersionName>& versions);  // sorted

 private:
  mutable std::mutex mutex_;
  std::map<VersionName, Entry> entries_;  // guarded by mutex_
};

// What a catalog shows of a version.
[[nodiscard]] VersionInfo version_info(const Manifest& manifest);
[[nodiscard]] inline VersionName name_of(const VersionInfo& version) { return {version.step, version.attempt}; }

}  // namespace slackwater
