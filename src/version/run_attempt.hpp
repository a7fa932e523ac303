// RunAttempt: what allows this run to write and delete in one tier directory: the lock, and the attempt under which it
// writes. A run gets its attempt in one of three ways: rank 0 claims it, the other ranks accept it, and a lower tier
// follows the one of tier 0. Once another run has claimed a newer attempt, this run may not commit any more.
// Owned by VersionStore. Lifetime: what it is given outlives it. The lock is held until its end.
// Thread rule: one thread at a time, as version_store.hpp says. check_newest(): any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/guarded.hpp"
#include "base/log.hpp"
#include "os/clock.hpp"
#include "os/file_system.hpp"
#include "slackwater/error.hpp"
#include "version/attempt.hpp"
#include "version/catalog.hpp"
#include "version/retention.hpp"
#include "version/version_cleaner.hpp"

namespace slackwater {

class RunAttempt {
 public:
  RunAttempt(FileSystem& fs, const Clock& clock, std::string root, Log log, ManifestCache& cache,
             Guarded<RunState>& run, VersionCleaner& cleaner);

  // For rank 0, before anything else. kBusy: another run holds the lock. Goes on without it if the file system has no
  // locks.
  [[nodiscard]] Status take_lock();
  // For ranks whose directory is not that of rank 0 (Options::node_local): takes the lock, if nobody has it. One rank
  // of each node deletes there. True: this one.
  [[nodiscard]] bool lead_node();

  // Claims the next attempt number and adopts `adopted`. If another run takes the number first, tries the one after it.
  // May be called again: after a rollback, the run goes on under a new attempt. Also removes old attempt files, and
  // what crashes left behind in .slackwater. If the disk is full, deletes to make room for the claim: first undecided
  // versions of earlier attempts (whoever holds the lock knows that nobody can commit them any more), then adopted ones
  // beyond `policy`.
  // `members`: an id for each rank; empty means one rank. `set_aside`: versions to keep although they are not live.
  // `above`: the newest attempt of the lower tiers; the number is higher, so that it is the same on all tiers.
  // `left_behind`: versions that the user went back behind.
  [[nodiscard]] Result<Attempt> claim(const std::string& run_name, std::vector<VersionName> adopted,
                                      std::vector<std::string> members = {}, std::vector<SetAside> set_aside = {},
                                      const RetentionPolicy& policy = {.keep = 0}, std::uint32_t above = 0,
                                      std::vector<VersionName> left_behind = {});
  // For the members: goes on under the attempt that rank 0 claimed. kAborted unless it lists `id` as this rank.
  [[nodiscard]] Result<Attempt> accept(std::uint32_t number, std::uint32_t rank, const std::string& id);
  // For a lower tier: goes on under the attempt that was claimed on tier 0. Publishes its file here, with the versions
  // that only this tier has added to `adopted`. kAborted: another run has taken that number or a newer one.
  [[nodiscard]] Status follow(const Attempt& attempt);
  // For ranks whose directory is not that of rank 0: places the attempt file that rank 0 sent. May be called by several
  // ranks of a node, with the same text. kAborted: this directory has a newer attempt, or another one of that number.
  [[nodiscard]] Status place(const std::string& text);

  // The attempt and this process's rank in it; nullopt and 0 before the first claim(), accept() or follow().
  [[nodiscard]] const std::optional<Attempt>& current() const { return current_; }
  [[nodiscard]] std::uint32_t rank() const { return rank_; }
  // kInternal unless `number` is the current attempt.
  [[nodiscard]] Status check_current(std::uint32_t number) const;
  // kAborted: a newer attempt has been claimed.
  [[nodiscard]] Status check_newest() const;

 private:
  void set_current(const Attempt& attempt, std::uint32_t rank);
  [[nodiscard]] bool sync_adopted(const Attempt& attempt, const RetentionPolicy& policy);

  // Constant after construction.
  FileSystem& fs_;
  const Clock& clock_;
  const std::string root_;
  const Log log_;

  // Thread-safe.
  ManifestCache& cache_;
  Guarded<RunState>& run_;
  VersionCleaner& cleaner_;

  std::unique_ptr<FileLock> lock_;  // constant after take_lock(), or lead_node()

  // Changed only by claim(), accept() and follow().
  std::optional<Attempt> current_;
  std::uint32_t rank_ = 0;
};

}  // namespace slackwater
