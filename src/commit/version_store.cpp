#include "commit/version_store.hpp"

#include <algorithm>
#include <cerrno>
#include <limits>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "commit/fields.hpp"
#include "os/durable.hpp"

namespace slackwater {
namespace {

constexpr std::uint32_t kAttemptsKept = 16;  // files of the newest ones

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

bool locks_unknown(const Error& error) {
  return error.sys_errno == ENOLCK || error.sys_errno == ENOSYS || error.sys_errno == EOPNOTSUPP;
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
        files_(files) {}

  [[nodiscard]] const std::string& root() const { return root_; }
  [[nodiscard]] Result<Catalog> scan() { return scan_catalog(fs_, root_); }

  Status open();
  Result<Attempt> claim(const std::string& run_name, std::vector<VersionName> adopted,
                        std::vector<std::string> members);
  Result<Attempt> accept(std::uint32_t number, std::uint32_t rank, const std::string& id);
  Result<std::string> make_version(std::uint64_t step);
  Result<RecordReference> promise(const Record& record, const std::string& index_text);
  Result<RecordReference> write_promise(const Record& record, const std::string& index_text);
  Status write_index(const VersionName& version, const std::string& index_text);
  Status discard(const VersionName& version, std::uint32_t rank);
  Result<Manifest> decide(Manifest manifest);
  Status remove(const VersionName& version);
  Status clean_up(const RetentionPolicy& policy);
  Status pin(const VersionName& version);

 private:
  [[nodiscard]] std::string path_of(const VersionName& version) const {
    return fmt::format("{}/{}", root_, version_directory(version));
  }
  [[nodiscard]] RankFiles files_of(std::uint32_t world) const { return files_.value_or(RankFiles::of_world(world)); }
  Status make_rank_directory(const std::string& directory);
  Status check_claimed(std::uint32_t attempt) const;
  Status check_newest();
  void forget_old_attempts();
  Result<std::uint32_t> next_number();
  Result<Manifest> obey_existing(const VersionName& version);
  Status take_lock();
  template <class Ours>
  Status unlink_if(const std::string& directory, const Ours& ours);
  Status remove_rank_directories(const std::string& directory);
  Result<bool> remove_if_empty(const std::string& directory);
  [[nodiscard]] std::vector<VersionName> removable(const Catalog& catalog, const RetentionPolicy& policy);

  // Constant after construction.
  FileSystem& fs_;
  const Clock& clock_;
  const std::string root_;
  const std::string control_;
  const Log log_;
  const Role role_;
  const std::optional<RankFiles> files_;

  std::unique_ptr<FileLock> lock_;
  std::optional<Attempt> attempt_;    // claimed
  std::uint32_t rank_ = 0;            // in it
  std::uint32_t authority_ = 0;       // number of attempt_; before claim(), the newest found by open()
  std::set<VersionName> doubtful_;    // committed, but the last sync failed
  std::set<VersionName> left_alone_;  // mentioned once in the log, not again
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
  SW_ASSIGN(authority_, newest_attempt_number(fs_, root_));
  return {};
}

// Above every attempt that left a trace, so that no name is ever used twice even if attempt files were lost.
Result<std::uint32_t> VersionStore::Impl::next_number() {
  SW_ASSIGN(std::uint32_t newest, newest_attempt_number(fs_, root_));
  SW_ASSIGN(const std::vector<DirectoryEntry> entries, fs_.list(root_));
  for (const DirectoryEntry& entry : entries) {
    if (const auto version = parse_version_directory(entry.name)) newest = std::max(newest, version->attempt);
  }
  if (newest == std::numeric_limits<std::uint32_t>::max()) {
    return corrupt("no attempt number is left; start in a new directory", root_);
  }
  return newest + 1;
}

Result<Attempt> VersionStore::Impl::claim(const std::string& run_name, std::vector<VersionName> adopted,
                                          std::vector<std::string> members) {
  if (members.empty()) members.push_back(random_id());
  Attempt attempt{.number = 0,
                  .run = random_id(),
                  .run_name = run_name,
                  .world = static_cast<std::uint32_t>(members.size()),
                  .members = std::move(members),
                  .adopted = std::move(adopted),
                  .created_unix_ms = clock_.wall_unix_ms()};
  std::ranges::sort(attempt.adopted);
  for (;;) {
    SW_ASSIGN(attempt.number, next_number());
    const Status published =
        publish_exclusively(fs_, control_, attempt_file(attempt.number), serialize(attempt), attempt.run);
    if (published) break;
    if (published.error().kind != ErrorKind::kAlreadyExists) return fail(published.error());
  }
  authority_ = attempt.number;
  rank_ = 0;
  attempt_ = attempt;
  forget_old_attempts();
  return attempt;
}

// What counts follows from the newest file; those before it serve only where it is damaged. What stays does no harm.
void VersionStore::Impl::forget_old_attempts() {
  const auto entries = fs_.list(control_);
  if (!entries) return;
  for (const DirectoryEntry& entry : *entries) {
    const auto number = parse_attempt_file(entry.name);
    if (number && *number < authority_ && authority_ - *number >= kAttemptsKept)
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
  authority_ = attempt.number;
  rank_ = rank;
  attempt_ = attempt;
  return attempt;
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
                          authority_),
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
  SW_TRY(write_durably(fs_, fmt::format("{}/{}", path_of(version), kIndexName), index_text));
  return fs_.sync_directory(path_of(version));
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
  const Status published = publish_exclusively(fs_, path_of(version), kManifestName, serialize(manifest), unique);
  if (!published) {
    // An abort that a power cut takes back leaves an undecided version, which counts as little.
    if (published.error().kind == ErrorKind::kInDoubt && !commit) return manifest;
    if (published.error().kind == ErrorKind::kInDoubt) doubtful_.insert(version);
    if (published.error().kind != ErrorKind::kAlreadyExists) return fail(published.error());
    SW_ASSIGN(manifest, obey_existing(version));
  }
  // A run that took over between the look above and the decision has not adopted this version: it is void, and must not
  // be reported as safe. Nor must it be if nobody can tell.
  if (Status newest = manifest.decision == Decision::kCommit ? check_newest() : Status(); !newest) {
    Error error = std::move(newest).error();
    if (error.kind != ErrorKind::kAborted) {
      error.kind = ErrorKind::kInDoubt;
      doubtful_.insert(version);
    }
    return fail(std::move(error));
  }
  return manifest;
}

Result<Manifest> VersionStore::Impl::obey_existing(const VersionName& version) {
  const auto in_doubt = [&](Error error, const char* what) {
    error.message = fmt::format("step {} was decided, but {}: {}", version.step, what, error.message);
    error.kind = ErrorKind::kInDoubt;
    return fail(std::move(error));
  };
  auto manifest = read_manifest(fs_, root_, version);
  if (!manifest) return in_doubt(std::move(manifest).error(), "the decision cannot be read");
  if (manifest->decision == Decision::kAbort) return manifest;
  // Who wrote it may hang in its sync, or have died before: a commit is reported only when a power cut cannot undo it.
  if (Status synced = fs_.sync_directory(path_of(version)); !synced) {
    doubtful_.insert(version);
    return in_doubt(std::move(synced).error(), "the decision may be gone after a power cut");
  }
  return manifest;
}

Status VersionStore::Impl::remove(const VersionName& version) {
  SW_TRY(check_newest());
  const std::string directory = path_of(version);
  SW_ASSIGN(const FileStatus found, fs_.status(directory));
  if (found.type != FileType::kDirectory)
    return fail(ErrorKind::kCorrupt, "expected a directory, found something else", directory);

  // The manifest first, and for good: no crash may leave a version that counts and lacks files.
  const Status unlinked = fs_.unlink(fmt::format("{}/{}", directory, kManifestName));
  if (!unlinked && unlinked.error().kind != ErrorKind::kNotFound) return unlinked;
  if (unlinked) SW_TRY(fs_.sync_directory(directory));
  SW_TRY(unlink_if(directory, is_version_file));
  SW_TRY(remove_rank_directories(directory));
  SW_ASSIGN(const bool removed, remove_if_empty(directory));
  if (!removed && left_alone_.insert(version).second) {
    log_.warn(
        "the checkpoint of step {} was deleted, but its directory holds files that are not Slackwater's and stays: {}",
        version.step, directory);
  }
  doubtful_.erase(version);
  const Status unpinned = fs_.unlink(fmt::format("{}/{}", control_, pin_file(version)));
  if (!unpinned && unpinned.error().kind != ErrorKind::kNotFound) return unpinned;
  return {};
}

Status VersionStore::Impl::discard(const VersionName& version, std::uint32_t rank) {
  SW_TRY(check_newest());
  const auto manifest = read_manifest(fs_, root_, version);
  const bool undecided = !manifest && manifest.error().kind == ErrorKind::kNotFound;
  if (!undecided && (!manifest || manifest->decision != Decision::kAbort)) return {};
  std::string directory = path_of(version);
  Status removed;
  // The subdirectory stays: other ranks of the group may be about to write there.
  if (const std::string own = attempt_ ? files_of(attempt_->world).directory(rank) : std::string(); !own.empty()) {
    directory += "/" + own;
    removed = check_own_directory(fs_, directory);
  }
  if (removed)
    removed = unlink_if(directory, [&](std::string_view name) { return rank_of_file(name) == std::optional(rank); });
  if (!removed && removed.error().kind != ErrorKind::kNotFound) return removed;
  return {};
}

template <class Ours>
Status VersionStore::Impl::unlink_if(const std::string& directory, const Ours& ours) {
  SW_ASSIGN(const std::vector<DirectoryEntry> entries, fs_.list(directory));
  for (const DirectoryEntry& entry : entries) {
    if (entry.type != FileType::kRegular || !ours(entry.name)) continue;
    const Status unlinked = fs_.unlink(fmt::format("{}/{}", directory, entry.name));
    if (!unlinked && unlinked.error().kind != ErrorKind::kNotFound) return unlinked;
  }
  return {};
}

// Those found, not those that the world would have: debris of another start is cleared away too. A link in their place is
// no directory and stays.
Status VersionStore::Impl::remove_rank_directories(const std::string& directory) {
  SW_ASSIGN(const std::vector<DirectoryEntry> entries, fs_.list(directory));
  for (const DirectoryEntry& entry : entries) {
    if (entry.type != FileType::kDirectory || !is_rank_directory(entry.name)) continue;
    const std::string path = fmt::format("{}/{}", directory, entry.name);
    SW_TRY(unlink_if(path, [](std::string_view name) { return rank_of_file(name).has_value(); }));
    SW_TRY(remove_if_empty(path));
  }
  return {};
}

// False: somebody else's files are in it.
Result<bool> VersionStore::Impl::remove_if_empty(const std::string& directory) {
  Status removed = fs_.remove_directory(directory);
  if (removed) return true;
  if (removed.error().sys_errno == ENOTEMPTY || removed.error().sys_errno == EEXIST) return false;
  return fail(std::move(removed).error());
}

std::vector<VersionName> VersionStore::Impl::removable(const Catalog& catalog, const RetentionPolicy& policy) {
  std::vector<VersionInfo> counting = catalog.counting();
  const bool committed =
      std::ranges::any_of(counting, [&](const VersionInfo& version) { return version.attempt == authority_; });
  // A rank votes for a step when it has done with the ones before: nobody writes below the newest commit of all ranks.
  std::uint64_t settled_below = 0;
  for (const VersionInfo& version : counting) {
    if (version.attempt == authority_) settled_below = std::max(settled_below, version.step);
  }
  const bool alone = attempt_->world == 1;
  const auto settled = [&](const VersionName& name) {
    return name.attempt < authority_ || (!alone && name.step < settled_below);
  };
  std::vector<VersionName> names;
  for (const CatalogEntry& entry : catalog.entries) {
    switch (entry.state) {
      case VersionState::kCounts: break;  // below
      case VersionState::kSuperseded:
        if (committed && !entry.info.pinned) names.push_back(entry.name);
        break;
      case VersionState::kAborted:
        if (alone || settled(entry.name)) names.push_back(entry.name);
        break;
      case VersionState::kUndecided:
        if (settled(entry.name) && !doubtful_.contains(entry.name) && !left_alone_.contains(entry.name))
          names.push_back(entry.name);
        break;
      case VersionState::kUnreadable:
        if (left_alone_.insert(entry.name).second) {
          log_.warn("the checkpoint of step {} is left as it is, because its manifest cannot be read: {}",
                    entry.name.step, entry.error->to_string());
        }
        break;
    }
  }
  if (!committed) return names;

  // A version in doubt goes when its time has come, but none goes because one in doubt fills its place.
  const auto in_doubt = [&](const VersionInfo& version) { return doubtful_.contains({version.step, version.attempt}); };
  for (const VersionName& name : expired(counting, policy)) {
    if (doubtful_.contains(name)) names.push_back(name);
  }
  std::erase_if(counting, in_doubt);
  std::ranges::copy(expired(counting, policy), std::back_inserter(names));
  return names;
}

Status VersionStore::Impl::clean_up(const RetentionPolicy& policy) {
  if (!attempt_)
    return fail(ErrorKind::kInternal, "old versions were to be removed before an attempt was claimed", root_);
  SW_TRY(check_newest());
  SW_ASSIGN(const Catalog catalog, scan());
  // Without our own list of what was adopted, what counts is a guess: good enough to read by, not to delete by.
  if (!catalog.newest_attempt)
    return corrupt("the file of this attempt cannot be read, so nothing is deleted", control_);
  const std::vector<VersionInfo> counting = catalog.counting();
  if (!counting.empty() && doubtful_.contains({counting.back().step, counting.back().attempt})) return {};

  Status first;
  for (const VersionName& name : removable(catalog, policy)) {
    if (Status removed = remove(name); !removed && first) first = std::move(removed);
  }
  return first;
}

Status VersionStore::Impl::pin(const VersionName& version) {
  SW_ASSIGN(const Manifest manifest, read_manifest(fs_, root_, version));
  if (manifest.decision != Decision::kCommit) {
    return fail(ErrorKind::kInvalidArgument, fmt::format("step {} was aborted and cannot be pinned", version.step),
                path_of(version));
  }
  const Status written = write_durably(fs_, fmt::format("{}/{}", control_, pin_file(version)), "pinned\n");
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
Result<Attempt> VersionStore::claim(const std::string& run_name, std::vector<VersionName> adopted,
                                    std::vector<std::string> members) {
  return impl_->claim(run_name, std::move(adopted), std::move(members));
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
Status VersionStore::remove(const VersionName& version) { return impl_->remove(version); }
Status VersionStore::clean_up(const RetentionPolicy& policy) { return impl_->clean_up(policy); }
Status VersionStore::pin(const VersionName& version) { return impl_->pin(version); }

}  // namespace slackwater
