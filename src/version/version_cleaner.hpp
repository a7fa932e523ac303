// VersionCleaner: deletes versions on behalf of one run: what the user names, what retention allows, and the files of a
// step that was given up. retention.hpp decides what may go; VersionRemover knows how one version goes. It deletes
// nothing once another run has taken over the tier.
// Owned by the VersionStore. Thread rule: thread-safe, but a version must not be removed by two threads at once.
// Lifetime: what it is given outlives it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/guarded.hpp"
#include "base/log.hpp"
#include "os/clock.hpp"
#include "slackwater/error.hpp"
#include "version/catalog.hpp"
#include "version/retention.hpp"
#include "version/version_remover.hpp"

namespace slackwater {

class VersionCleaner {
 public:
  VersionCleaner(FileSystem& fs, const Clock& clock, std::string root, Log log, ManifestCache& cache,
                 Guarded<RunState>& run);

  // These five are described in version_store.hpp.
  [[nodiscard]] Status remove(const VersionName& version, const std::string& why, std::optional<std::uint32_t> newest);
  [[nodiscard]] Result<std::vector<VersionInfo>> clean_up(const RetentionPolicy& policy, Need need);
  [[nodiscard]] Status discard(const VersionName& version, const std::string& rank_directory, std::uint32_t rank);
  [[nodiscard]] std::uint64_t removed_count() const { return removed_; }
  [[nodiscard]] bool removed_lately() const;

  // Removes all of these, even if one fails. Returns those that are gone, or else the first error.
  [[nodiscard]] Result<std::set<VersionName>> remove_all(const std::vector<Removal>& removals);
  void set_held(std::function<std::set<VersionName>()> held) { held_ = std::move(held); }  // see version_store.hpp
  // Finishes deletions that a crash interrupted, where a pin came in time. Call it once, with the lock held.
  void finish_interrupted();

 private:
  [[nodiscard]] Status check_newest(std::optional<std::uint32_t> newest = {}) const;
  void count_removed();
  void log_unreadable(const Catalog& catalog);

  // Constant after construction.
  FileSystem& fs_;
  const Clock& clock_;
  const std::string root_;
  const Log log_;
  ManifestCache& cache_;
  Guarded<RunState>& run_;

  std::function<std::set<VersionName>()> held_;  // constant once clean_up() runs; empty: nothing is held

  VersionRemover remover_;
  std::atomic<std::uint64_t> removed_{0};
  std::atomic<TimePoint> removed_at_{};  // the last one

  std::mutex mutex_;
  std::set<VersionName> logged_unreadable_;  // each is logged once; guarded by mutex_
};

}  // namespace slackwater
