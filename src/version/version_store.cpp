#include "version/version_store.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "os/durable.hpp"
#include "version/pins.hpp"

namespace slackwater {
namespace {

std::string parent_of(const std::string& path) {
  const auto slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string without_trailing_slashes(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

// The two mistakes that users make most often get a message of their own.
Result<bool> make_tier_directory(FileSystem& fs, const std::string& path) {
  auto made = ensure_directory(fs, path);
  if (made) return made;
  Error error = std::move(made).error();
  if (error.kind == ErrorKind::kNotFound) {
    error.message =
        fmt::format("cannot create the checkpoint directory: '{}' does not exist; create it first", parent_of(path));
  } else if (error.kind == ErrorKind::kPermission) {
    error.message = "cannot create the checkpoint directory; choose a place where this user may write";
  }
  return fail(std::move(error));
}

}  // namespace

// Opening.

VersionStore::VersionStore(FileSystem& fs, const Clock& clock, std::string root, Log log,
                           std::optional<RankFiles> files)
    : fs_(fs),
      root_(std::move(root)),
      files_(files),
      cleaner_(fs, clock, root_, log, cache_, run_),
      attempt_(fs, clock, root_, std::move(log), cache_, run_, cleaner_) {}

Result<std::unique_ptr<VersionStore>> VersionStore::open(FileSystem& fs, const Clock& clock, std::string root, Log log,
                                                         Role role, std::optional<RankFiles> files) {
  std::unique_ptr<VersionStore> store(
      new VersionStore(fs, clock, without_trailing_slashes(std::move(root)), std::move(log), files));
  SW_TRY(store->prepare(role));
  return store;
}

Status VersionStore::prepare(Role role) {
  if (root_.empty()) return fail(ErrorKind::kInvalidArgument, "the name of the checkpoint directory is empty");
  SW_ASSIGN(const bool made_root, make_tier_directory(fs_, root_));
  SW_TRY(make_tier_directory(fs_, control_path(root_)));
  SW_TRY(check_control_directory(fs_, root_));
  if (role == Role::kLeader) SW_TRY(attempt_.take_lock());
  // A name survives a power cut only after its directory was synced. Sync always, not only if we made it: the run that
  // made it may have died before its sync. A parent that we did not make may not even be readable for us, so its error
  // does not count then.
  SW_TRY(fs_.sync_directory(root_));
  Status parent = fs_.sync_directory(parent_of(root_));
  if (!parent && made_root) return parent;
  SW_ASSIGN(const std::uint32_t newest, newest_attempt_number(fs_, root_));
  run_.lock()->newest_known = newest;
  // Before anybody lists what can be restored.
  if (role == Role::kLeader) cleaner_.finish_interrupted();
  return {};
}

// Copies of what rank 0 wrote, in the directory of another node.

Status VersionStore::place_decision(const VersionName& version, const std::string& manifest_text,
                                    const std::string& index_text) {
  const std::string directory = version_path(root_, version);
  // In the same order as on rank 0's node: whoever sees the manifest sees the index.
  const auto place = [&](const char* name, const std::string& text) {
    Status placed = publish_exclusively(fs_, directory, name, text, random_id());
    return !placed && placed.error().kind == ErrorKind::kAlreadyExists ? Status() : placed;
  };
  Status placed = index_text.empty() ? Status() : place(kIndexName, index_text);
  if (placed) placed = place(kManifestName, manifest_text);
  // The version is committed, whatever this directory says. So nothing of it may be swept here.
  if (!placed) run_.lock()->doubtful.insert(version);
  return placed;
}

// One version, in durability order:
//   make_version -> [data files written and synced] -> write_record -> vote -> write_index (several ranks) -> decide
// Each step is durable before the next one begins, so a manifest never refers to anything that a power cut can undo.

Result<std::string> VersionStore::make_version(std::uint64_t step) {
  const auto& attempt = attempt_.current();
  if (!attempt) return fail(ErrorKind::kInternal, "cannot make a version: no attempt is claimed", root_);
  std::string path = version_path(root_, {step, attempt->number});
  if (attempt->world > 1) {
    SW_TRY(ensure_directory(fs_, path));  // whichever rank comes first makes it
  } else if (Status made = fs_.make_directory(path); !made) {
    Error error = std::move(made).error();
    if (error.kind == ErrorKind::kAlreadyExists)
      error.message = fmt::format("step {} was already saved by this run", step);
    return fail(std::move(error));
  }
  const std::string own = files_of(attempt->world).directory(attempt_.rank());
  if (own.empty()) return path;
  const std::string subdirectory = fmt::format("{}/{}", path, own);
  Status made = fs_.make_directory(subdirectory);
  if (!made && made.error().kind != ErrorKind::kAlreadyExists) return fail(std::move(made).error());
  if (!made) SW_TRY(check_own_directory(fs_, subdirectory));  // another rank of the group was first
  return path;
}

Result<RecordReference> VersionStore::write_record(const Record& record, const std::string& index_text) {
  SW_TRY(attempt_.check_current(record.identity.attempt));
  auto written = write_record_files(fs_, root_, files_of(record.identity.world), record, index_text);
  // A newer attempt removes what an older one has not decided. If that is why the directory is gone, say so.
  if (!written && written.error().kind == ErrorKind::kNotFound) SW_TRY(attempt_.check_newest());
  return written;
}

Result<RecordReference> VersionStore::write_record_files(FileSystem& fs, const std::string& root,
                                                         const RankFiles& files, const Record& record,
                                                         const std::string& index_text) {
  const std::uint32_t rank = record.identity.rank;
  const std::string directory = version_path(root, {record.identity.step, record.identity.attempt});
  const std::string own = files.directory(rank);
  const std::string text = serialize(record);
  RecordReference reference{rank, files.record(rank), digest128(text)};
  const std::string index_path = fmt::format("{}/{}", directory, kIndexName);
  const std::string record_path = fmt::format("{}/{}", directory, reference.file);

  // The bytes first: a name that is durable without its bytes would be a record that cannot be read.
  Status status;
  if (!index_text.empty()) status = write_durably(fs, index_path, index_text);
  if (status) status = write_durably(fs, record_path, text);
  // Then the names, from the inside out. This rank syncs every directory up to the root, whoever made it: another rank
  // may have made it and died before its own sync. open() has synced the parents of the root.
  if (status && !own.empty()) status = fs.sync_directory(fmt::format("{}/{}", directory, own));
  if (status) status = fs.sync_directory(directory);
  if (status) status = fs.sync_directory(root);
  if (status) return reference;

  // The caller may make room and call again. Files are created exclusively, so the names must be free then.
  if (status.error().kind == ErrorKind::kNoSpace) {
    if (!index_text.empty()) (void)fs.unlink(index_path);
    (void)fs.unlink(record_path);
  }
  return fail(std::move(status).error());
}

Status VersionStore::write_index(const VersionName& version, const std::string& index_text) {
  SW_TRY(attempt_.check_current(version.attempt));
  const std::string directory = version_path(root_, version);
  const std::string path = fmt::format("{}/{}", directory, kIndexName);
  SW_TRY(write_durably(fs_, path, index_text));
  Status synced = fs_.sync_directory(directory);
  // As in write_record(): the caller may make room and call again.
  if (!synced && synced.error().kind == ErrorKind::kNoSpace) (void)fs_.unlink(path);
  return synced;
}

Result<Manifest> VersionStore::decide(Manifest manifest) {
  SW_TRY(attempt_.check_current(manifest.attempt));
  const VersionName version{manifest.step, manifest.attempt};
  const bool commit = manifest.decision == Decision::kCommit;

  // A run that is over must not commit: the newer run has not adopted this version, and never will. (An abort can do no
  // harm.)
  if (commit) {
    SW_TRY(attempt_.check_newest());
    manifest.files = files_of(manifest.world);
    if (manifest.files != RankFiles{}) manifest.required_features.emplace_back(kSubdirectoriesFeature);
  }

  // From the link on, a clean-up can see this commit, but it is not safe before the sync behind it. So it is noted
  // beforehand, and no older version is deleted because of it.
  if (commit) run_.lock()->deciding = version;
  // Each rank uses a private name of its own (random_id): several may give a step up at the same time.
  const Status published =
      publish_exclusively(fs_, version_path(root_, version), kManifestName, serialize(manifest), random_id());
  if (!published) {
    const ErrorKind kind = published.error().kind;
    // An abort that a power cut undoes leaves an undecided version, and nobody restores that either.
    if (kind == ErrorKind::kInDoubt && !commit) return manifest;
    // Only these two errors prove that our commit is not visible. After any other one it may be: over a network, the
    // link may have been made although it failed here.
    const bool invisible = kind == ErrorKind::kNoSpace || kind == ErrorKind::kAlreadyExists;
    if (commit && !invisible) run_.lock()->doubtful.insert(version);
    run_.lock()->deciding = std::nullopt;
    if (kind != ErrorKind::kAlreadyExists) return fail(published.error());
    // Somebody was first. There is one decision for all, so ours is dropped.
    SW_ASSIGN(manifest, follow_existing_decision(version));
  }

  // Another run may have taken over between the check above and the decision. It has not adopted this version, so the
  // commit is void and must not be reported as safe. If nobody can tell, it must not be reported either.
  if (Status newest = manifest.decision == Decision::kCommit ? attempt_.check_newest() : Status(); !newest) {
    Error error = std::move(newest).error();
    if (error.kind != ErrorKind::kAborted) {
      error.kind = ErrorKind::kInDoubt;
      run_.lock()->doubtful.insert(version);
    }
    run_.lock()->deciding = std::nullopt;
    return fail(std::move(error));
  }
  run_.lock()->deciding = std::nullopt;
  return manifest;
}

Result<Manifest> VersionStore::follow_existing_decision(const VersionName& version) {
  const auto in_doubt = [&](Error error, const char* what) {
    run_.lock()->doubtful.insert(version);
    error.message = fmt::format("step {} was decided, but {}: {}", version.step, what, error.message);
    error.kind = ErrorKind::kInDoubt;
    return fail(std::move(error));
  };
  auto manifest = read_manifest(fs_, root_, version);
  if (!manifest) return in_doubt(std::move(manifest).error(), "the decision cannot be read");
  if (manifest->decision == Decision::kAbort) return manifest;
  // Its writer may hang in its sync, or have died before it. A commit is reported only when a power cut cannot undo it.
  if (Status synced = fs_.sync_directory(version_path(root_, version)); !synced)
    return in_doubt(std::move(synced).error(), "a power cut may undo the decision");
  return manifest;
}

Status VersionStore::pin(const VersionName& version) { return pin_version(fs_, root_, version); }

Status VersionStore::pin_ahead(const VersionName& version) {
  SW_TRY(attempt_.check_current(version.attempt));
  return pin_ahead_of_commit(fs_, root_, version);
}

// Deletion.

Status VersionStore::remove(const VersionName& version, const std::string& why, std::optional<std::uint32_t> newest) {
  return cleaner_.remove(version, why, newest);
}

Status VersionStore::discard(const VersionName& version, std::uint32_t rank) {
  const auto& attempt = attempt_.current();
  return cleaner_.discard(version, attempt ? files_of(attempt->world).directory(rank) : std::string(), rank);
}

Result<std::vector<VersionInfo>> VersionStore::clean_up(const RetentionPolicy& policy, Need need) {
  return cleaner_.clean_up(policy, need);
}

std::uint64_t VersionStore::removed_count() const { return cleaner_.removed_count(); }
bool VersionStore::removed_lately() const { return cleaner_.removed_lately(); }

}  // namespace slackwater
