// VersionRemover: takes one version off a tier. No crash may leave a live version without its files, or a pinned one
// without its manifest. The order:
//   manifest linked to a second name, synced -> manifest unlinked -> pins checked again -> second name unlinked, synced
//   -> files unlinked, records first -> directory removed -> pin unlinked
// version/retention.hpp decides what may be removed. Only names that Slackwater makes are unlinked; a directory that
// holds files of others stays, without a manifest.
// Owned by a VersionCleaner or by the CLI. Thread rule: thread-safe, but a version must not be removed by two threads
// at once. Lifetime: what it is given outlives it.
#pragma once

#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <string_view>

#include "base/log.hpp"
#include "os/file_system.hpp"
#include "slackwater/error.hpp"
#include "version/manifest_cache.hpp"
#include "version/names.hpp"

namespace slackwater {

class VersionRemover {
 public:
  VersionRemover(FileSystem& fs, std::string root, Log log, ManifestCache& cache);

  // kStaysIfConfirmed is for a version that is not committed: it goes even if it was pinned ahead of its commit, but
  // stays if it has been committed since.
  enum class Pinned : std::uint8_t { kStays, kStaysIfConfirmed, kGoesToo };
  // Logs what is removed and why. False: it is pinned, or has been committed since, and is unchanged. kNotFound: there
  // is no such version.
  [[nodiscard]] Result<bool> remove(const VersionName& version, const std::string& why, Pinned pinned);

  // After a crash: puts a removed manifest back if its version is pinned, which means that all its files are there.
  // Call it with the tier's lock held, before anything is removed.
  [[nodiscard]] Status finish_interrupted();

  // Whether its files were removed, but its directory stays because it holds files of others.
  [[nodiscard]] bool left_alone(const VersionName& version) const;

  // Unlinks the files in `directory` for which `ours` returns true, records before the data that they vouch for.
  [[nodiscard]] Status unlink_if(const std::string& directory, const std::function<bool(std::string_view)>& ours);

 private:
  [[nodiscard]] Result<bool> is_pinned(const VersionName& version);
  [[nodiscard]] Status finish_interrupted(const VersionName& version);
  [[nodiscard]] Status put_aside(const std::string& directory);
  [[nodiscard]] Status put_back(const std::string& directory);
  [[nodiscard]] Status remove_rank_directories(const std::string& directory);
  [[nodiscard]] Result<bool> remove_if_empty(const std::string& directory);

  // Constant after construction.
  FileSystem& fs_;
  const std::string root_;
  const Log log_;
  ManifestCache& cache_;

  mutable std::mutex mutex_;
  std::set<VersionName> left_alone_;  // guarded by mutex_
};

}  // namespace slackwater
