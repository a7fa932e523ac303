#include "version/run_attempt.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "os/posix_lock.hpp"
#include "store/s3/locations.hpp"
#include "version/attempt_files.hpp"

namespace slackwater {

RunAttempt::RunAttempt(FileSystem& fs, const Clock& clock, std::string root, Log log, ManifestCache& cache,
                       Guarded<RunState>& run, VersionCleaner& cleaner)
    : fs_(fs),
      clock_(clock),
      root_(std::move(root)),
      log_(std::move(log)),
      cache_(cache),
      run_(run),
      cleaner_(cleaner) {}

// The lock only gives an early error. What really keeps two runs apart is the attempt, so a file system without locks
// will do.
Status RunAttempt::take_lock() {
  auto lock = fs_.try_lock(lock_path(root_));
  if (!lock && !locks_unknown(lock.error())) return fail(std::move(lock).error());
  if (lock) {
    lock_ = std::move(*lock);
  } else if (!is_object_location(root_)) {  // those never have locks: docs/s3.md says what that means
    log_.warn("this file system has no locks, so a second run on this directory is noticed only at its first save: {}",
              root_);
  }
  return {};
}

bool RunAttempt::lead_node() {
  if (lock_) return true;
  auto lock = fs_.try_lock(lock_path(root_));
  if (!lock) return false;
  lock_ = std::move(*lock);
  cleaner_.finish_interrupted();
  return true;
}

Result<Attempt> RunAttempt::claim(const std::string& run_name, std::vector<VersionName> adopted,
                                  std::vector<std::string> members, std::vector<SetAside> set_aside,
                                  const RetentionPolicy& policy, std::uint32_t above,
                                  std::vector<VersionName> left_behind) {
  if (members.empty()) members.push_back(random_id());
  Attempt attempt{.number = 0,
                  .run = random_id(),
                  .run_name = run_name,
                  .world = static_cast<std::uint32_t>(members.size()),
                  .members = std::move(members),
                  .adopted = std::move(adopted),
                  .set_aside = std::move(set_aside),
                  .left_behind = std::move(left_behind),
                  .created_unix_ms = clock_.wall_unix_ms()};
  std::ranges::sort(attempt.adopted);

  // The attempt file is the claim: whoever creates it exclusively owns the number, and every older run can see that it
  // is over.
  Status published = publish_attempt(fs_, root_, attempt, above);
  if (!published && published.error().kind == ErrorKind::kNoSpace && lock_) {
    // Debris of killed runs may be all that fills the disk, and nobody else will ever remove it. All attempts so far
    // are over: whoever could still commit under one of them would hold the lock. Without the lock we cannot know.
    SW_ASSIGN(const Catalog catalog, scan_catalog(fs_, root_, &cache_));
    const auto sweep = [&](const std::vector<Removal>& removals) {
      if (const auto swept = cleaner_.remove_all(removals); !swept)
        log_.warn("cannot remove what earlier runs left behind: {}", swept.error().to_string());
      return publish_attempt(fs_, root_, attempt, above);
    };
    published = sweep(leftovers(catalog, Sweeper{.attempt = attempt.number}));
    // Or a run was killed between a commit and the deletion that follows it. Then `keep` versions and one more fill the
    // disk. The surplus one may go only if those that stay are certain to survive a power cut.
    if (!published && published.error().kind == ErrorKind::kNoSpace && sync_adopted(attempt, policy))
      published = sweep(surplus(catalog, attempt.adopted, policy));
  }
  if (!published) return fail(std::move(published).error());

  set_current(attempt, 0);
  // If an adopted version cannot be synced, it is in doubt, and no other one is deleted because of it.
  static_cast<void>(sync_adopted(attempt, policy));
  remove_old_attempt_files(fs_, root_, attempt.number, lock_ != nullptr);
  return attempt;
}

// A restore has read the adopted versions, and the run goes on from them. Each is as good as committed if a sync
// succeeds now. That is tried for those in doubt, and for the newest `keep`: their writer may have been killed before
// its own sync, and others will be deleted because these exist. One that cannot be synced is in doubt and replaces
// nothing; removable() does not touch adopted ones. Returns false if any of them is in doubt.
bool RunAttempt::sync_adopted(const Attempt& attempt, const RetentionPolicy& policy) {
  std::set<VersionName> unsure = run_.lock()->doubtful;
  std::erase_if(unsure,
                [&](const VersionName& version) { return !std::ranges::binary_search(attempt.adopted, version); });
  bool sure = true;
  // False: it is not here. A lower tier has it, and it counts there.
  const auto sync = [&](const VersionName& version) {
    const Status synced = fs_.sync_directory(version_path(root_, version));
    if (!synced && synced.error().kind == ErrorKind::kNotFound) return false;
    if (synced) {
      run_.lock()->doubtful.erase(version);
    } else {
      run_.lock()->doubtful.insert(version);
      sure = false;
    }
    return true;
  };
  for (const VersionName& version : unsure) static_cast<void>(sync(version));
  std::uint64_t kept = 0;
  for (auto version = attempt.adopted.rbegin(); version != attempt.adopted.rend() && kept < policy.keep; ++version)
    if (unsure.contains(*version) || sync(*version)) ++kept;
  return sure;
}

Result<Attempt> RunAttempt::accept(std::uint32_t number, std::uint32_t rank, const std::string& id) {
  SW_ASSIGN(Attempt attempt, read_attempt(fs_, root_, number));
  if (rank >= attempt.members.size() || attempt.members[rank] != id) {
    return fail(
        ErrorKind::kAborted,
        fmt::format("attempt {} does not list this process as its rank {}; restart all ranks together", number, rank),
        root_);
  }
  set_current(attempt, rank);
  return attempt;
}

Status RunAttempt::follow(const Attempt& attempt) {
  SW_ASSIGN(const auto other, place_attempt_file(fs_, root_, attempt, serialize(attempt)));
  if (other) {
    return fail(ErrorKind::kAborted,
                fmt::format("another run has used this tier (attempt {}, ours is {}); nothing more is copied there "
                            "until this run is started again, which deletes nothing of either",
                            *other, attempt.number),
                root_);
  }
  set_current(attempt, 0);
  run_.lock()->add_own_copies({});
  remove_old_attempt_files(fs_, root_, attempt.number, lock_ != nullptr);
  return {};
}

Status RunAttempt::place(const std::string& text) {
  SW_ASSIGN(const Attempt attempt, parse_attempt(text, control_path(root_)));
  SW_ASSIGN(const auto other, place_attempt_file(fs_, root_, attempt, text));
  if (!other) return {};
  return fail(ErrorKind::kAborted,
              fmt::format("this node has attempt {} of another run, and rank 0 claimed attempt {}; call restore() on "
                          "all ranks before the first save, so that rank 0 learns of it",
                          *other, attempt.number),
              root_);
}

void RunAttempt::set_current(const Attempt& attempt, std::uint32_t rank) {
  rank_ = rank;
  current_ = attempt;
  run_.lock()->claim(attempt);
}

Status RunAttempt::check_current(std::uint32_t number) const {
  if (current_ && current_->number == number) return {};
  return fail(ErrorKind::kInternal,
              fmt::format("cannot write a version of attempt {}: {}", number,
                          current_ ? fmt::format("attempt {} is claimed", current_->number) : "no attempt is claimed"),
              root_);
}

Status RunAttempt::check_newest() const {
  const std::uint32_t ours = run_.lock()->newest_known;  // copied: the check reads the disk, the lock is not held then
  return check_newest_attempt(fs_, root_, ours);
}

}  // namespace slackwater
