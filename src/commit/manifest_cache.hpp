// ManifestCache: what the manifests of a tier say, so that each is read once. A manifest never changes, and a name is never used
// twice; only its end has to be told. For whoever holds the tier's lock: nobody else deletes there.
// Thread rule: thread-safe.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "commit/manifest.hpp"
#include "commit/names.hpp"
#include "slackwater/checkpoint.hpp"

namespace slackwater {

class ManifestCache {
 public:
  struct Entry {
    Decision decision = Decision::kCommit;
    VersionInfo info;  // without the pin
  };

  [[nodiscard]] std::optional<Entry> find(const VersionName& version) const;
  void put(const VersionName& version, Entry entry);
  void erase(const VersionName& version);
  void keep_only(const std::vector<VersionName>& versions);  // sorted

 private:
  mutable std::mutex mutex_;
  std::map<VersionName, Entry> entries_;  // guarded by mutex_
};

// What a catalog tells of a version.
[[nodiscard]] VersionInfo version_info(const Manifest& manifest);
[[nodiscard]] inline VersionName name_of(const VersionInfo& version) { return {version.step, version.attempt}; }

}  // namespace slackwater
