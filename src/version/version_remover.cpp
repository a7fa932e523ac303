#include "version/version_remover.hpp"

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/result.hpp"
#include "os/durable.hpp"
#include "os/retry.hpp"
#include "store/s3/locations.hpp"
#include "version/attempt.hpp"
#include "version/delete_notes.hpp"
#include "version/fields.hpp"
#include "version/manifest.hpp"
#include "version/pins.hpp"

namespace slackwater {
namespace {

// The second name of a manifest whose version is being deleted. is_version_file() accepts it.
std::string aside_path(const std::string& directory) {
  return fmt::format("{}/.{}.deleted.tmp", directory, kManifestName);
}

}  // namespace

VersionRemover::VersionRemover(FileSystem& fs, std::string root, Log log, ManifestCache& cache)
    : fs_(fs), root_(std::move(root)), log_(std::move(log)), cache_(cache) {}

Result<bool> VersionRemover::is_pinned(const VersionName& version) {
  SW_ASSIGN(const auto pins, list_pins(fs_, root_));
  return pins.contains(version);
}

Result<bool> VersionRemover::remove(const VersionName& version, const std::string& why, Pinned pinned) {
  const std::string directory = version_path(root_, version);
  const std::string manifest_path = fmt::format("{}/{}", directory, kManifestName);
  SW_ASSIGN(const FileStatus found, retry_read([&] { return fs_.status(directory); }));
  if (found.type != FileType::kDirectory) return corrupt("expected a directory, found something else", directory);

  // 1. Any rank may have pinned the version since it was chosen. If one does so from now on, step 3 puts the manifest
  //    back, even after a crash. So the manifest keeps a second name until then. (A version without a manifest was
  //    never committed, and nobody can pin it.)
  std::string manifest;
  if (pinned != Pinned::kGoesToo) {
    SW_ASSIGN(const bool is, is_pinned(version));
    if (is && (pinned == Pinned::kStays || pin_may_be_confirmed(fs_, root_, version))) {
      SW_TRY(finish_interrupted(version));
      return false;
    }
    auto text = retry_read([&] { return read_whole(fs_, manifest_path, kMaxManifestBytes); });
    if (!text && text.error().kind != ErrorKind::kNotFound) return fail(std::move(text).error());
    if (text) manifest = std::move(*text);
    // It was chosen because it was not committed. If it is committed now, somebody who does not see our lock did that
    // and has reported it.
    if (pinned == Pinned::kStaysIfConfirmed && !manifest.empty()) {
      const auto decided = parse_manifest(manifest, manifest_path);
      if (!decided || decided->decision == Decision::kCommit) return false;
    }
    // A delete() was cut short before it removed anything here. Its note must not come into force because of us. (No
    // object store is a tier 0.)
    if (!manifest.empty() && !is_object_location(root_)) SW_TRY(withdraw_delete_notes(fs_, root_, version));
    // A disk without space for a name must not keep us from freeing space. Then the text in memory has to do.
    Status aside = pinned == Pinned::kStays && !manifest.empty() ? put_aside(directory) : Status();
    if (!aside && aside.error().kind != ErrorKind::kNoSpace) return fail(std::move(aside).error());
  }
  log_.info("deleting step {} (attempt {}): {}", version.step, version.attempt, why);

  // 2. The manifest goes first: no crash may leave a live version that lacks files. (One that is published here from
  //    now on is not the one that was looked at: step 6.)
  cache_.erase(version);
  const bool may_be_published = pinned == Pinned::kStaysIfConfirmed && manifest.empty();
  Status unlinked = may_be_published ? Status() : fs_.unlink(manifest_path);
  if (!unlinked && unlinked.error().kind != ErrorKind::kNotFound) return fail(std::move(unlinked).error());

  // 3. A rank that pins writes the pin and then looks for the manifest. We remove the manifest and then look for the
  //    pin. So at least one of the two sees the other.
  if (pinned == Pinned::kStays && !manifest.empty()) {
    SW_ASSIGN(const bool is, is_pinned(version));
    if (is) {
      if (!put_back(directory)) SW_TRY(publish_exclusively(fs_, directory, kManifestName, manifest, random_id()));
      log_.info("step {} (attempt {}) is kept: it was pinned meanwhile", version.step, version.attempt);
      return false;
    }
  }
  // 4. From here on there is no way back. After a crash, a second name would mean that all files are still there, so it
  //    goes before they do.
  unlinked = fs_.unlink(aside_path(directory));
  if (!unlinked && unlinked.error().kind != ErrorKind::kNotFound) return fail(std::move(unlinked).error());
  // 5. Both names must be gone for good before any file is. Sync even if we found them gone: the sync after their
  //    removal may have failed, or a crash may have come before it.
  SW_TRY(fs_.sync_directory(directory));

  // 6. Now nobody can need the files. Where there is no lock that keeps others out, somebody may have copied the rest
  //    of an undecided version here and published it meanwhile. Before the first file goes, that version stays. After
  //    it, the copier finds that files are missing, and what it published is removed as well.
  if (may_be_published) {
    SW_ASSIGN(const bool decided, lists_name(fs_, directory, kManifestName));
    if (decided) {
      log_.info("step {} (attempt {}) is kept: it was published meanwhile", version.step, version.attempt);
      return false;
    }
  }
  SW_TRY(unlink_if(directory, is_version_file));
  SW_TRY(remove_rank_directories(directory));
  if (may_be_published) SW_TRY(unlink_if(directory, is_version_file));
  SW_ASSIGN(const bool removed, remove_if_empty(directory));
  if (!removed) {
    const std::lock_guard lock(mutex_);
    if (left_alone_.insert(version).second) {
      log_.warn(
          "the checkpoint of step {} was deleted, but its directory stays because it holds files that are not "
          "Slackwater's: {}",
          version.step, directory);
    }
  }
  const Status unpinned = fs_.unlink(fmt::format("{}/{}", control_path(root_), pin_file(version)));
  if (!unpinned && unpinned.error().kind != ErrorKind::kNotFound) return fail(unpinned.error());
  return true;
}

Status VersionRemover::unlink_if(const std::string& directory, const std::function<bool(std::string_view)>& ours) {
  SW_ASSIGN(std::vector<DirectoryEntry> entries, retry_read([&] { return fs_.list(directory); }));
  // A record vouches for data files. So if we are killed here, no record stays behind without them.
  std::ranges::stable_partition(entries, [](const DirectoryEntry& entry) { return entry.name.ends_with(".record"); });
  for (const DirectoryEntry& entry : entries) {
    if (entry.type != FileType::kRegular || !ours(entry.name)) continue;
    Status unlinked = fs_.unlink(fmt::format("{}/{}", directory, entry.name));
    if (!unlinked && unlinked.error().kind != ErrorKind::kNotFound) return unlinked;
  }
  return {};
}

// A second name that exists already is from a deletion that was interrupted. Manifests never change, so it is as good.
Status VersionRemover::put_aside(const std::string& directory) {
  Status linked = fs_.link(fmt::format("{}/{}", directory, kManifestName), aside_path(directory));
  if (!linked && linked.error().kind != ErrorKind::kAlreadyExists) return linked;
  return fs_.sync_directory(directory);
}

Status VersionRemover::put_back(const std::string& directory) {
  Status linked = fs_.link(aside_path(directory), fmt::format("{}/{}", directory, kManifestName));
  if (!linked && linked.error().kind != ErrorKind::kAlreadyExists) return linked;
  SW_TRY(fs_.sync_directory(directory));
  (void)fs_.unlink(aside_path(directory));  // if it stays, the next deletion uses it
  return {};
}

Status VersionRemover::finish_interrupted() {
  SW_ASSIGN(const auto pins, list_pins(fs_, root_));
  for (const VersionName& version : pins) SW_TRY(finish_interrupted(version));
  return {};
}

// For a pinned version.
Status VersionRemover::finish_interrupted(const VersionName& version) {
  const std::string directory = version_path(root_, version);
  const auto entries = retry_read([&] { return fs_.list(directory); });
  if (!entries && entries.error().kind == ErrorKind::kNotFound) return {};
  if (!entries) return fail(entries.error());
  const auto has = [&](std::string_view name) {
    return std::ranges::binary_search(*entries, name, {}, &DirectoryEntry::name);
  };
  const std::string aside = aside_path(directory);
  if (has(kManifestName) || !has(aside.substr(aside.rfind('/') + 1))) return {};
  SW_TRY(put_back(directory));
  log_.info("step {} (attempt {}) is kept after all: it was pinned while it was being deleted", version.step,
            version.attempt);
  return {};
}

bool VersionRemover::left_alone(const VersionName& version) const {
  const std::lock_guard lock(mutex_);
  return left_alone_.contains(version);
}

// Removes those it finds, not those that the world would have: this clears away debris of another start too. A link in
// the place of a directory stays.
Status VersionRemover::remove_rank_directories(const std::string& directory) {
  SW_ASSIGN(const std::vector<DirectoryEntry> entries, retry_read([&] { return fs_.list(directory); }));
  for (const DirectoryEntry& entry : entries) {
    if (entry.type != FileType::kDirectory || !is_rank_directory(entry.name)) continue;
    const std::string path = fmt::format("{}/{}", directory, entry.name);
    SW_TRY(unlink_if(path, [](std::string_view name) { return rank_of_file(name).has_value(); }));
    SW_TRY(remove_if_empty(path));
  }
  return {};
}

// False: there are files of others in it.
Result<bool> VersionRemover::remove_if_empty(const std::string& directory) {
  Status removed = fs_.remove_directory(directory);
  if (removed) return true;
  if (removed.error().sys_errno == ENOTEMPTY || removed.error().sys_errno == EEXIST) return false;
  return fail(std::move(removed).error());
}

}  // namespace slackwater
