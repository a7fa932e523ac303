#include "commit/version_store.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "commit/fields.hpp"
#include "os/durable.hpp"
#include "os/posix_lock.hpp"
#include "os/retry.hpp"

namespace slackwater {
namespace {

constexpr std::uint32_t kAttemptsKept = 16;  // files of the newest ones
constexpr std::chrono::seconds kLately{2};
constexpr std::chrono::milliseconds kPinPause{20};
constexpr int kPinLooks = 500;  // ten seconds

std::string parent_of(const std::string& path) {
  const auto slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string without_trailing_slashes(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

// Makes a directory of the tier; what people most often get wrong is said in their words.
Result<bool> make_tier_directory(FileSystem& fs, const std::string& path) {
  auto made = ensure_directory(fs, path);
  if (made) return made;
  Error error = std::move(made).error();
  if (error.kind == ErrorKind::kNotFound) {
    error.message =
        fmt::format("cannot make the directory of checkpoints: '{}' does not exist; make it first", parent_of(path));
  } else if (error.kind == ErrorKind::kPermission) {
    error.message = "cannot make the directory of checkpoints; choose a place this user may write to";
  }
  return fail(std::move(error));
}

}  // namespace

class VersionStore::Impl {
 public:
  Impl(FileSystem& fs, const Clock& clock, std::string root, Log log, Role role, std::optional<RankFiles> files)
      : fs_(fs),
        clock_(clock),
        root_(std::move(root)),
        control_(fmt::format("{}/{}", root_, kControlDirectory)),
        log_(std::move(log)),
        role_(role),
        files_(files),
        remover_(fs, root_, log_, cache_) {}

  [[nodiscard]] const std::string& root() const { return root_; }
  [[nodiscard]] Result<Catalog> scan() { return scan_catalog(fs_, root_); }
  [[nodiscard]] Result<Catalog> scan_cached() { return scan_catalog(fs_, root_, &cache_); }

  Status open();
  Result<Attempt> claim(const std::string& run_name, std::vector<VersionName> adopted, std::vector<std::string> members,
                        std::vector<SetAside> set_aside, const RetentionPolicy& policy);
  Result<Attempt> accept(std::uint32_t number, std::uint32_t rank, const std::string& id);
  Result<std::string> make_version(std::uint64_t step);
  Result<RecordReference> promise(const Record& record, const std::string& index_text);
  Result<RecordReference> write_promise(const Record& record, const std::string& index_text);
  Result<RecordReference> write_and_sync_promise(const Record& record, const std::string& index_text);
  Status write_index(const VersionName& version, const std::string& index_text);
  Status discard(const VersionName& version, std::uint32_t rank);
  Result<Manifest> decide(Manifest manifest);
  Status remove(const VersionName& version, const std::string& why);
  Result<std::vector<VersionInfo>> clean_up(const RetentionPolicy& policy, Need need);
  Status pin(const VersionName& version);
  Status pin_ahead(const VersionName& version);
  [[nodiscard]] std::uint64_t removed_count() const { return removed_; }
  [[nodiscard]] bool removed_lately() const { return removed_ > 0 && clock_.now() - removed_at_.load() < kLately; }

 private:
  [[nodiscard]] std::string path_of(const VersionName& version) const {
    return fmt::format("{}/{}", root_, version_directory(version));
  }
  [[nodiscard]] RankFiles files_of(std::uint32_t world) const { return files_.value_or(RankFiles::of_world(world)); }
  Status make_rank_directory(const std::string& directory);
  Status check_claimed(std::uint32_t attempt) const;
  Status check_newest();
  Status publish_attempt(Attempt& attempt);
  void use_attempt(const Attempt& attempt, std::uint32_t rank);
  bool settle_doubt(const Attempt& attempt, const RetentionPolicy& policy);
  void forget_old_attempts();
  Result<std::set<VersionName>> remove_all(const std::vector<Removal>& removals);
  Result<std::uint32_t> next_number();
  Result<Manifest> obey_existing(const VersionName& version);
  Status take_lock();
  [[nodiscard]] Result<Standing> standing() const;
  void mention_unreadable(const Catalog& catalog);
  void set_deciding(std::optional<VersionName> version);
  void set_doubtful(const VersionName& version);
  void note_removed() {
    removed_at_ = clock_.now();
    ++removed_;
  }

  // Constant after construction.
  FileSystem& fs_;
  const Clock& clock_;
  const std::string root_;
  const std::string control_;
  const Log log_;
  const Role role_;
  const std::optional<RankFiles> files_;

  ManifestCache cache_;
  VersionRemover remover_;
  std::atomic<TimePoint> removed_at_{};  // the last one
  std::atomic<std::uint64_t> removed_{0};

  std::unique_ptr<FileLock> lock_;
  std::optional<Attempt> attempt_;           // claimed; changed by claim() and accept() alone, under mutex_
  std::uint32_t rank_ = 0;                   // in it
  std::atomic<std::uint32_t> authority_{0};  // number of attempt_; before claim(), the newest found by open()

  mutable std::mutex mutex_;             // guards what follows
  std::set<VersionName> doubtful_;       // committed, but the last sync failed
  std::set<VersionName> abandoned_;      // their removal has begun, and has not succeeded yet
  std::optional<VersionName> deciding_;  // visible, perhaps, but not yet reported
  std::set<VersionName> mentioned_;      // as unreadable: once in the log, not again
};

Status VersionStore::Impl::take_lock() {
  auto lock = fs_.try_lock(fmt::format("{}/{}", control_, kLockName));
  if (lock) {
    lock_ = std::move(*lock);
  } else if (locks_unknown(lock.error())) {
    // The lock only gives an early error. What keeps two runs apart is the attempt.
    log_.warn("this file system has no locks, so a second run on the directory is noticed only at its first save: {}",
              root_);
  } else {
    return fail(std::move(lock).error());
  }
  return {};
}

Status VersionStore::Impl::open() {
  if (root_.empty()) return fail(ErrorKind::kInvalidArgument, "the directory of checkpoints has an empty name");
  SW_ASSIGN(const bool made_root, make_tier_directory(fs_, root_));
  SW_TRY(make_tier_directory(fs_, control_));
  SW_TRY(check_control_directory(fs_, root_));
  if (role_ == Role::kLeader) SW_TRY(take_lock());
  // Names survive a power cut only when their directory was synced. Always, not just when they were made now: the run
  // that made them may have died before. Of a parent that we did not make we may not even be readers.
  SW_TRY(fs_.sync_directory(root_));
  Status parent = fs_.sync_directory(parent_of(root_));
  if (!parent && made_root) return parent;
  SW_ASSIGN(const std::uint32_t newest, newest_attempt_number(fs_, root_));
  authority_ = newest;
  // Before anybody looks what there is to restore.
  if (role_ == Role::kLeader) {
    if (Status finished = remover_.finish_interrupted(); !finished)
      log_.warn("a pinned checkpoint that was being deleted could not be looked at: {}", finished.error().to_string());
  }
  return {};
}

// Above every attempt that left a trace, so that no name is ever used twice even if attempt files were lost.
Result<std::uint32_t> VersionStore::Impl::next_number() {
  SW_ASSIGN(std::uint32_t newest, newest_attempt_number(fs_, root_));
  SW_ASSIGN(const std::vector<DirectoryEntry> entries, retry_read([&] { return fs_.list(root_); }));
  for (const DirectoryEntry& entry : entries) {
    if (const auto version = parse_version_directory(entry.name)) newest = std::max(newest, version->attempt);
  }
  if (newest == std::numeric_limits<std::uint32_t>::max()) {
    return corrupt("no attempt number is left; start in a new directory", root_);
  }
  return newest + 1;
}

Result<Attempt> VersionStore::Impl::claim(const std::string& run_name, std::vector<VersionName> adopted,
                                          std::vector<std::string> members, std::vector<SetAside> set_aside,
                                          const RetentionPolicy& policy) {
  if (members.empty()) members.push_back(random_id());
  Attempt attempt{.number = 0,
                  .run = random_id(),
                  .run_name = run_name,
                  .world = static_cast<std::uint32_t>(members.size()),
                  .members = std::move(members),
                  .adopted = std::move(adopted),
                  .set_aside = std::move(set_aside),
                  .created_unix_ms = clock_.wall_unix_ms()};
  std::ranges::sort(attempt.adopted);
  Status published = publish_attempt(attempt);
  if (!published && published.error().kind == ErrorKind::kNoSpace && lock_) {
    // Debris of killed runs may be all that fills the disk, and nobody else will ever take it away. All attempts so far
    // are over: whoever could have committed under them would hold the lock.
    SW_ASSIGN(const Catalog catalog, scan_catalog(fs_, root_, &cache_));
    const Sweeper sweeper{.attempt = attempt.number};
    const auto sweep = [&](const std::vector<Removal>& removals) {
      if (const auto swept = remove_all(removals); !swept)
        log_.warn("leftovers of earlier runs could not be removed: {}", swept.error().to_string());
      return publish_attempt(attempt);
    };
    published = sweep(leftovers(catalog, sweeper));
    // Or a run was killed between a commit and the delete that belongs to it: then `keep` and one more fill the disk.
    if (!published && published.error().kind == ErrorKind::kNoSpace && settle_doubt(attempt, policy))
      published = sweep(surplus(catalog, attempt.adopted, policy));
  }
  if (!published) return fail(std::move(published).error());
  use_attempt(attempt, 0);
  static_cast<void>(settle_doubt(attempt, policy));
  forget_old_attempts();
  return attempt;
}

Status VersionStore::Impl::publish_attempt(Attempt& attempt) {
  for (;;) {
    SW_ASSIGN(attempt.number, next_number());
    Status published =
        publish_exclusively(fs_, control_, attempt_file(attempt.number), serialize(attempt), attempt.run);
    if (published || published.error().kind != ErrorKind::kAlreadyExists) return published;
  }
}

// What counts follows from the newest file; those before it serve only where it is damaged. What stays does no harm.
void VersionStore::Impl::forget_old_attempts() {
  const auto entries = fs_.list(control_);
  if (!entries) return;
  for (const DirectoryEntry& entry : *entries) {
    const auto number = parse_attempt_file(entry.name);
    const bool old = number && *number < authority_ && authority_ - *number >= kAttemptsKept;
    // Private names of claims that a crash cut short; without the lock they may be of a claim that is under way.
    const bool debris = lock_ && entry.name.starts_with(".attempt-") && entry.name.ends_with(".tmp");
    if (entry.type == FileType::kRegular && (old || debris))
      (void)fs_.unlink(fmt::format("{}/{}", control_, entry.name));
  }
}

Result<Attempt> VersionStore::Impl::accept(std::uint32_t number, std::uint32_t rank, const std::string& id) {
  SW_ASSIGN(Attempt attempt, read_attempt(fs_, root_, number));
  if (rank >= attempt.members.size() || attempt.members[rank] != id) {
    return fail(
        ErrorKind::kAborted,
        fmt::format("attempt {} does not list this process as its rank {}; restart all ranks together", number, rank),
        root_);
  }
  use_attempt(attempt, rank);
  return attempt;
}

// A restore has read it and the run goes on from it: it is as good as committed, if a sync now succeeds. That goes for what
// was in doubt, and for the newest ones, whose writer may have been killed before it synced them: others are deleted because
// these are there. If it fails they are in doubt, and fill nobody's place; removable() leaves adopted ones alone.
// False: one of the newest is in doubt.
bool VersionStore::Impl::settle_doubt(const Attempt& attempt, const RetentionPolicy& policy) {
  std::set<VersionName> unsure;
  {
    const std::lock_guard lock(mutex_);
    unsure = doubtful_;
  }
  std::erase_if(unsure, [&](const VersionName& version) {
    return !std::ranges::binary_search(attempt.adopted, version);
  });
  const auto kept = static_cast<std::ptrdiff_t>(std::min<std::uint64_t>(policy.keep, attempt.adopted.size()));
  unsure.insert(attempt.adopted.end() - kept, attempt.adopted.end());
  bool sure = true;
  for (const VersionName& version : unsure) {
    const bool synced = fs_.sync_directory(path_of(version)).has_value();
    sure = sure && synced;
    const std::lock_guard lock(mutex_);
    if (synced) {
      doubtful_.erase(version);
    } else {
      doubtful_.insert(version);
    }
  }
  return sure;
}

void VersionStore::Impl::use_attempt(const Attempt& attempt, std::uint32_t rank) {
  const std::lock_guard lock(mutex_);
  authority_ = attempt.number;
  rank_ = rank;
  attempt_ = attempt;
}

Status VersionStore::Impl::check_claimed(std::uint32_t attempt) const {
  if (attempt_ && attempt_->number == attempt) return {};
  return fail(ErrorKind::kInternal,
              fmt::format("a version of attempt {} was to be written, but {}", attempt,
                          attempt_ ? fmt::format("attempt {} is claimed", attempt_->number) : "no attempt is claimed"),
              root_);
}

Status VersionStore::Impl::check_newest() {
  SW_ASSIGN(const std::uint32_t newest, newest_attempt_number(fs_, root_));
  if (newest <= authority_) return {};
  return fail(ErrorKind::kAborted,
              fmt::format("another run has taken over this directory (attempt {}, ours is {}); end this one", newest,
                          authority_.load()),
              root_);
}

Result<std::string> VersionStore::Impl::make_version(std::uint64_t step) {
  if (!attempt_) return fail(ErrorKind::kInternal, "a version was to be made before an attempt was claimed", root_);
  std::string path = path_of({step, attempt_->number});
  if (attempt_->world > 1) {  // whichever rank comes first
    SW_TRY(ensure_directory(fs_, path));
  } else if (Status made = fs_.make_directory(path); !made) {
    Error error = std::move(made).error();
    if (error.kind == ErrorKind::kAlreadyExists)
      error.message = fmt::format("step {} was saved already by this run", step);
    return fail(std::move(error));
  }
  SW_TRY(make_rank_directory(path));
  return path;
}

Status VersionStore::Impl::make_rank_directory(const std::string& directory) {
  const std::string name = files_of(attempt_->world).directory(rank_);
  if (name.empty()) return {};
  const std::string path = fmt::format("{}/{}", directory, name);
  Status made = fs_.make_directory(path);
  if (made || made.error().kind != ErrorKind::kAlreadyExists) return made;
  return check_own_directory(fs_, path);  // another rank of the group was first
}

Result<RecordReference> VersionStore::Impl::promise(const Record& record, const std::string& index_text) {
  SW_TRY(check_claimed(record.identity.attempt));
  auto reference = write_promise(record, index_text);
  // A newer attempt takes away what an older one has not decided: then that is what to say.
  if (!reference && reference.error().kind == ErrorKind::kNotFound) SW_TRY(check_newest());
  return reference;
}

Result<RecordReference> VersionStore::Impl::write_promise(const Record& record, const std::string& index_text) {
  auto reference = write_and_sync_promise(record, index_text);
  if (!reference && reference.error().kind == ErrorKind::kNoSpace) {
    // Whoever finds room calls again, and then the names must be free.
    const std::string directory = path_of({record.identity.step, record.identity.attempt});
    if (!index_text.empty()) (void)fs_.unlink(fmt::format("{}/{}", directory, kIndexName));
    const std::string file = files_of(record.identity.world).record(record.identity.rank);
    (void)fs_.unlink(fmt::format("{}/{}", directory, file));
  }
  return reference;
}

Result<RecordReference> VersionStore::Impl::write_and_sync_promise(const Record& record,
                                                                   const std::string& index_text) {
  const std::string directory = path_of({record.identity.step, record.identity.attempt});
  const std::string text = serialize(record);
  const RankFiles files = files_of(record.identity.world);
  RecordReference reference{record.identity.rank, files.record(record.identity.rank), digest128(text)};
  if (!index_text.empty()) SW_TRY(write_durably(fs_, fmt::format("{}/{}", directory, kIndexName), index_text));
  SW_TRY(write_durably(fs_, fmt::format("{}/{}", directory, reference.file), text));
  // The files are durable, now their names are made so, then the names of their directories, whoever made those: another
  // rank may have died before it came to its own sync. open() did the parents of root_.
  if (const std::string own = files.directory(record.identity.rank); !own.empty())
    SW_TRY(fs_.sync_directory(fmt::format("{}/{}", directory, own)));
  SW_TRY(fs_.sync_directory(directory));
  SW_TRY(fs_.sync_directory(root_));
  return reference;
}

Status VersionStore::Impl::write_index(const VersionName& version, const std::string& index_text) {
  SW_TRY(check_claimed(version.attempt));
  const std::string path = fmt::format("{}/{}", path_of(version), kIndexName);
  SW_TRY(write_durably(fs_, path, index_text));
  Status synced = fs_.sync_directory(path_of(version));
  // Whoever finds room calls again, and then the name must be free.
  if (!synced && synced.error().kind == ErrorKind::kNoSpace) (void)fs_.unlink(path);
  return synced;
}

Result<Manifest> VersionStore::Impl::decide(Manifest manifest) {
  SW_TRY(check_claimed(manifest.attempt));
  const VersionName version{manifest.step, manifest.attempt};
  const bool commit = manifest.decision == Decision::kCommit;
  if (commit) {
    SW_TRY(check_newest());
    manifest.files = files_of(manifest.world);
    if (manifest.files != RankFiles{}) manifest.required_features.emplace_back(kSubdirectoriesFeature);
  }
  // Of its own for each rank: several may give a step up at once.
  const std::string unique = random_id();
  if (commit) set_deciding(version);  // from now on it may be seen, and is not yet to be relied on
  const Status published = publish_exclusively(fs_, path_of(version), kManifestName, serialize(manifest), unique);
  if (!published) {
    // An abort that a power cut takes back leaves an undecided version, which counts as little.
    if (published.error().kind == ErrorKind::kInDoubt && !commit) return manifest;
    // Unless it is certain that nothing can be seen: an error of the link itself is not, over a network.
    const bool unseen =
        published.error().kind == ErrorKind::kNoSpace || published.error().kind == ErrorKind::kAlreadyExists;
    if (commit && !unseen) set_doubtful(version);
    set_deciding(std::nullopt);
    if (published.error().kind != ErrorKind::kAlreadyExists) return fail(published.error());
    SW_ASSIGN(manifest, obey_existing(version));
  }
  // A run that took over between the look above and the decision has not adopted this version: it is void, and must not
  // be reported as safe. Nor must it be if nobody can tell.
  if (Status newest = manifest.decision == Decision::kCommit ? check_newest() : Status(); !newest) {
    Error error = std::move(newest).error();
    if (error.kind != ErrorKind::kAborted) {
      error.kind = ErrorKind::kInDoubt;
      set_doubtful(version);
    }
    set_deciding(std::nullopt);
    return fail(std::move(error));
  }
  set_deciding(std::nullopt);
  return manifest;
}

void VersionStore::Impl::set_deciding(std::optional<VersionName> version) {
  const std::lock_guard lock(mutex_);
  deciding_ = version;
}

void VersionStore::Impl::set_doubtful(const VersionName& version) {
  const std::lock_guard lock(mutex_);
  doubtful_.insert(version);
}

Result<Manifest> VersionStore::Impl::obey_existing(const VersionName& version) {
  const auto in_doubt = [&](Error error, const char* what) {
    error.message = fmt::format("step {} was decided, but {}: {}", version.step, what, error.message);
    error.kind = ErrorKind::kInDoubt;
    return fail(std::move(error));
  };
  auto manifest = read_manifest(fs_, root_, version);
  if (!manifest) {
    set_doubtful(version);
    return in_doubt(std::move(manifest).error(), "the decision cannot be read");
  }
  if (manifest->decision == Decision::kAbort) return manifest;
  // Who wrote it may hang in its sync, or have died before: a commit is reported only when a power cut cannot undo it.
  if (Status synced = fs_.sync_directory(path_of(version)); !synced) {
    set_doubtful(version);
    return in_doubt(std::move(synced).error(), "the decision may be gone after a power cut");
  }
  return manifest;
}

Status VersionStore::Impl::remove(const VersionName& version, const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    abandoned_.insert(version);  // if this fails, the next clean-up tries again
  }
  SW_TRY(check_newest());
  auto removed = remover_.remove(version, why, VersionRemover::Pinned::kGoesToo);
  const bool vanished = !removed && removed.error().kind == ErrorKind::kNotFound;
  if (removed) note_removed();
  if (removed || vanished) {
    const std::lock_guard lock(mutex_);
    doubtful_.erase(version);
    abandoned_.erase(version);
  }
  if (!removed) return fail(std::move(removed).error());
  return {};
}

// Those that are gone; the first error if there was one.
Result<std::set<VersionName>> VersionStore::Impl::remove_all(const std::vector<Removal>& removals) {
  std::set<VersionName> gone;
  std::optional<Error> first;
  for (const Removal& removal : removals) {
    SW_TRY(check_newest());  // each time: deleting may take minutes, and a run that takes over goes on from what is there
    using Pinned = VersionRemover::Pinned;
    const auto pinned = removal.committed ? Pinned::kStays : Pinned::kStaysIfConfirmed;
    auto removed = remover_.remove(removal.version, removal.why, pinned);
    const bool vanished = !removed && removed.error().kind == ErrorKind::kNotFound;
    if (removed && *removed) note_removed();
    if (vanished || (removed && *removed)) gone.insert(removal.version);
    // If it has lost its manifest, nobody would choose it again. If not, retention does.
    const auto decided = removed || vanished ? Result<bool>(true) : lists_name(fs_, path_of(removal.version), kManifestName);
    {
      const std::lock_guard lock(mutex_);
      if (removed || vanished) abandoned_.erase(removal.version);
      if (decided && !*decided) abandoned_.insert(removal.version);
    }
    if (!removed && !vanished && !first) first = std::move(removed).error();
  }
  if (first) return fail(std::move(*first));
  return gone;
}

Status VersionStore::Impl::discard(const VersionName& version, std::uint32_t rank) {
  SW_TRY(check_newest());
  const auto manifest = read_manifest(fs_, root_, version);
  const bool undecided = !manifest && manifest.error().kind == ErrorKind::kNotFound;
  if (!undecided && !manifest) return fail(manifest.error());
  if (!undecided && manifest->decision != Decision::kAbort) return {};
  std::string directory = path_of(version);
  Status removed;
  // The subdirectory stays: other ranks of the group may be about to write there.
  if (const std::string own = attempt_ ? files_of(attempt_->world).directory(rank) : std::string(); !own.empty()) {
    directory += "/" + own;
    removed = check_own_directory(fs_, directory);
  }
  if (removed)
    removed =
        remover_.unlink_if(directory, [&](std::string_view name) { return rank_of_file(name) == std::optional(rank); });
  if (!removed && removed.error().kind != ErrorKind::kNotFound) return removed;
  return {};
}

Result<Standing> VersionStore::Impl::standing() const {
  const std::lock_guard lock(mutex_);
  if (!attempt_)
    return fail(ErrorKind::kInternal, "old versions were to be removed before an attempt was claimed", root_);
  return Standing{.attempt = attempt_->number,
                  .alone = attempt_->world == 1,
                  .doubtful = doubtful_,
                  .deciding = deciding_,
                  .abandoned = abandoned_};
}

void VersionStore::Impl::mention_unreadable(const Catalog& catalog) {
  const std::lock_guard lock(mutex_);
  for (const CatalogEntry& entry : catalog.entries) {
    if (entry.state != VersionState::kUnreadable || !mentioned_.insert(entry.name).second) continue;
    log_.warn("the checkpoint of step {} is left as it is, because its manifest cannot be read: {}", entry.name.step,
              entry.error->to_string());
  }
}

Result<std::vector<VersionInfo>> VersionStore::Impl::clean_up(const RetentionPolicy& policy, Need need) {
  SW_TRY(check_newest());
  SW_ASSIGN(const Catalog catalog, scan_catalog(fs_, root_, &cache_));
  // After the scan: whatever it saw was noted as being decided before it could be seen. Asked before, a commit that became
  // visible meanwhile would count, although it is not synced yet, and the one it replaces would go.
  SW_ASSIGN(const Standing standing, this->standing());
  // Without our own list of what was adopted, what counts is a guess: good enough to read by, not to delete by.
  if (!catalog.newest_attempt)
    return corrupt("the file of this attempt cannot be read, so nothing is deleted", control_);
  mention_unreadable(catalog);
  std::vector<VersionInfo> live = catalog.counting();
  if (need == Need::kOrder && !live.empty() && standing.doubtful.contains(name_of(live.back()))) return live;
  std::vector<Removal> removals = removable(catalog, standing, policy, need);
  std::erase_if(removals, [&](const Removal& removal) { return remover_.left_alone(removal.version); });
  SW_ASSIGN(const std::set<VersionName> gone, remove_all(removals));
  std::erase_if(live, [&](const VersionInfo& version) { return gone.contains(name_of(version)); });
  return live;
}

Status VersionStore::Impl::pin(const VersionName& version) {
  SW_ASSIGN(const Manifest manifest, read_manifest(fs_, root_, version));
  if (manifest.decision != Decision::kCommit) {
    return fail(ErrorKind::kInvalidArgument, fmt::format("step {} was aborted and cannot be pinned", version.step),
                path_of(version));
  }
  const std::string path = fmt::format("{}/{}", control_, pin_file(version));
  const Status written = write_durably(fs_, path, kPinText);
  if (!written && written.error().kind != ErrorKind::kAlreadyExists) return written;
  SW_TRY(fs_.sync_directory(control_));
  // Rank 0 may be deleting it: it takes the manifest away and then looks for pins (VersionRemover::remove, step 3). If it
  // finds ours the manifest comes back, otherwise the directory goes.
  for (int looks = 0; looks < kPinLooks; ++looks) {
    auto decided = retry_read([&] { return lists_name(fs_, path_of(version), kManifestName); });
    if (decided && *decided) return {};
    if (!decided && decided.error().kind == ErrorKind::kNotFound) {
      (void)fs_.unlink(path);  // whose ever it is: it holds nothing any more
      return fail(ErrorKind::kNotFound, fmt::format("step {} is being deleted, and was not pinned", version.step),
                  path_of(version));
    }
    if (!decided) return fail(std::move(decided).error());
    std::this_thread::sleep_for(kPinPause);
  }
  // The pin stays: another rank may rely on it. If the delete goes through, it takes the pin along.
  return fail(Error{.kind = ErrorKind::kBusy,
                    .message = fmt::format("step {} is being deleted, and it may be too late to pin it; try again to "
                                           "find out",
                                           version.step),
                    .path = path_of(version),
                    .retryable = true});
}

// The pin is durable before the manifest can be: no clean-up, and no crash, finds the one without the other.
Status VersionStore::Impl::pin_ahead(const VersionName& version) {
  SW_TRY(check_claimed(version.attempt));
  const Status written = write_durably(fs_, fmt::format("{}/{}", control_, pin_file(version)), kPinAheadText);
  if (!written && written.error().kind != ErrorKind::kAlreadyExists) return written;
  return fs_.sync_directory(control_);
}

VersionStore::VersionStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
VersionStore::~VersionStore() = default;

Result<std::unique_ptr<VersionStore>> VersionStore::open(FileSystem& fs, const Clock& clock, std::string root, Log log,
                                                         Role role, std::optional<RankFiles> files) {
  auto impl = std::make_unique<Impl>(fs, clock, without_trailing_slashes(std::move(root)), std::move(log), role, files);
  SW_TRY(impl->open());
  return std::unique_ptr<VersionStore>(new VersionStore(std::move(impl)));
}

const std::string& VersionStore::root() const { return impl_->root(); }
Result<Catalog> VersionStore::scan() { return impl_->scan(); }
Result<Catalog> VersionStore::scan_cached() { return impl_->scan_cached(); }
Result<Attempt> VersionStore::claim(const std::string& run_name, std::vector<VersionName> adopted,
                                    std::vector<std::string> members, std::vector<SetAside> set_aside,
                                    const RetentionPolicy& policy) {
  return impl_->claim(run_name, std::move(adopted), std::move(members), std::move(set_aside), policy);
}
Result<Attempt> VersionStore::accept(std::uint32_t number, std::uint32_t rank, const std::string& id) {
  return impl_->accept(number, rank, id);
}
Result<std::string> VersionStore::make_version(std::uint64_t step) { return impl_->make_version(step); }
Result<RecordReference> VersionStore::promise(const Record& record, const std::string& index_text) {
  return impl_->promise(record, index_text);
}
Status VersionStore::write_index(const VersionName& version, const std::string& index_text) {
  return impl_->write_index(version, index_text);
}
Status VersionStore::discard(const VersionName& version, std::uint32_t rank) { return impl_->discard(version, rank); }
Result<Manifest> VersionStore::decide(Manifest manifest) { return impl_->decide(std::move(manifest)); }
Status VersionStore::remove(const VersionName& version, const std::string& why) { return impl_->remove(version, why); }
Result<std::vector<VersionInfo>> VersionStore::clean_up(const RetentionPolicy& policy, Need need) {
  return impl_->clean_up(policy, need);
}
std::uint64_t VersionStore::removed_count() const { return impl_->removed_count(); }
bool VersionStore::removed_lately() const { return impl_->removed_lately(); }
Status VersionStore::pin(const VersionName& version) { return impl_->pin(version); }
Status VersionStore::pin_ahead(const VersionName& version) { return impl_->pin_ahead(version); }

}  // namespace slackwater
