// VersionRemover: takes one version off a tier, in an order that no crash can turn into a live version without its files, nor
// into a pinned one without its manifest:
//   manifest linked aside, synced -> manifest unlinked -> pins looked at once more -> the link unlinked, synced ->
//   files unlinked -> directory removed -> pin unlinked
// What may be removed is decided elsewhere (commit/retention.hpp). Only names that Slackwater makes are unlinked; a directory
// with files of others stays, without a manifest.
// Thread rule: thread-safe. Nobody may remove the same version twice at once. Lifetime: what it is given outlives it.
#pragma once

#include <mutex>
#include <set>
#include <string>
#include <string_view>

#include "base/log.hpp"
#include "commit/manifest_cache.hpp"
#include "commit/names.hpp"
#include "os/file_system.hpp"
#include "os/retry.hpp"
#include "slackwater/error.hpp"

namespace slackwater {

// The names of versions that are pinned.
[[nodiscard]] Result<std::set<VersionName>> list_pins(FileSystem& fs, const std::string& root);

// What a pin says, and one that was made before its version was committed.
inline constexpr std::string_view kPinText = "pinned\n";
inline constexpr std::string_view kPinAheadText = "to be pinned\n";

class VersionRemover {
 public:
  VersionRemover(FileSystem& fs, std::string root, Log log, ManifestCache& cache);

  // kStaysIfConfirmed: for a version that is not committed. One pinned ahead of its commit goes; one that is committed
  // by now stays.
  enum class Pinned : std::uint8_t { kStays, kStaysIfConfirmed, kGoesToo };
  // Logs what is removed and why. False: it is pinned, or committed meanwhile, and stays as it is. kNotFound: it is not there.
  [[nodiscard]] Result<bool> remove(const VersionName& version, const std::string& why, Pinned pinned);

  // After a crash: a manifest that was taken away is put back where a pin holds its version, which then has all its files.
  // For whoever holds the tier's lock, before anything is removed.
  [[nodiscard]] Status finish_interrupted();

  // Its files were removed, but the directory holds files of others and stays.
  [[nodiscard]] bool left_alone(const VersionName& version) const;

  // Unlinks the files in `directory` for which `ours` says yes.
  template <class Ours>
  [[nodiscard]] Status unlink_if(const std::string& directory, const Ours& ours);

 private:
  [[nodiscard]] Result<bool> is_pinned(const VersionName& version);
  [[nodiscard]] bool is_confirmed(const VersionName& version);
  [[nodiscard]] Status finish_interrupted(const VersionName& version);
  [[nodiscard]] Status put_aside(const std::string& directory);
  [[nodiscard]] Status put_back(const std::string& directory);
  [[nodiscard]] Status remove_rank_directories(const std::string& directory);
  [[nodiscard]] Result<bool> remove_if_empty(const std::string& directory);

  // Constant after construction.
  FileSystem& fs_;
  const std::string root_;
  const std::string control_;
  const Log log_;
  ManifestCache& cache_;

  mutable std::mutex mutex_;
  std::set<VersionName> left_alone_;  // guarded by mutex_
};

template <class Ours>
Status VersionRemover::unlink_if(const std::string& directory, const Ours& ours) {
  auto entries = retry_read([&] { return fs_.list(directory); });
  if (!entries) return fail(std::move(entries).error());
  for (const DirectoryEntry& entry : *entries) {
    if (entry.type != FileType::kRegular || !ours(entry.name)) continue;
    Status unlinked = fs_.unlink(directory + "/" + entry.name);
    if (!unlinked && unlinked.error().kind != ErrorKind::kNotFound) return unlinked;
  }
  return {};
}

}  // namespace slackwater
