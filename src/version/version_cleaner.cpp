#include "version/version_cleaner.hpp"

#include <chrono>
#include <optional>
#include <utility>

#include "base/result.hpp"
#include "os/durable.hpp"
#include "version/attempt_files.hpp"
#include "version/fields.hpp"

namespace slackwater {
namespace {

constexpr std::chrono::seconds kLately{2};

}  // namespace

VersionCleaner::VersionCleaner(FileSystem& fs, const Clock& clock, std::string root, Log log, ManifestCache& cache,
                               Guarded<RunState>& run)
    : fs_(fs),
      clock_(clock),
      root_(std::move(root)),
      log_(std::move(log)),
      cache_(cache),
      run_(run),
      remover_(fs, root_, log_, cache_) {}

Status VersionCleaner::check_newest(std::optional<std::uint32_t> newest) const {
  const std::uint32_t ours = run_.lock()->newest_known;  // copied: the check reads the disk, the lock is not held then
  return newest ? check_newest_attempt(*newest, root_, ours) : check_newest_attempt(fs_, root_, ours);
}

bool VersionCleaner::removed_lately() const { return removed_ > 0 && clock_.now() - removed_at_.load() < kLately; }

void VersionCleaner::count_removed() {
  removed_at_ = clock_.now();
  ++removed_;
}

void VersionCleaner::finish_interrupted() {
  if (Status finished = remover_.finish_interrupted(); !finished)
    log_.warn("cannot check a pinned checkpoint that was being deleted: {}", finished.error().to_string());
}

Status VersionCleaner::remove(const VersionName& version, const std::string& why, std::optional<std::uint32_t> newest) {
  run_.lock()->abandoned.insert(version);  // if this fails, the next clean-up tries again
  SW_TRY(check_newest(newest));
  auto removed = remover_.remove(version, why, VersionRemover::Pinned::kGoesToo);
  if (removed) count_removed();
  if (removed || removed.error().kind == ErrorKind::kNotFound) {
    run_.lock()->doubtful.erase(version);
    run_.lock()->abandoned.erase(version);
  }
  if (!removed) return fail(std::move(removed).error());
  return {};
}

Result<std::set<VersionName>> VersionCleaner::remove_all(const std::vector<Removal>& removals) {
  std::set<VersionName> gone;
  std::optional<Error> first;
  for (const Removal& removal : removals) {
    // Checked each time: deleting may take minutes, and a run that takes over goes on from what is there.
    SW_TRY(check_newest());
    using Pinned = VersionRemover::Pinned;
    const auto pinned = removal.committed ? Pinned::kStays : Pinned::kStaysIfConfirmed;
    auto removed = remover_.remove(removal.version, removal.why, pinned);
    const bool vanished = !removed && removed.error().kind == ErrorKind::kNotFound;
    if (removed && *removed) count_removed();
    if (vanished || (removed && *removed)) gone.insert(removal.version);
    if (removed || vanished) {
      run_.lock()->abandoned.erase(removal.version);
      continue;
    }
    // A version that has lost its manifest would never be chosen again, so it is remembered. One that still has it is
    // chosen by retention anyway.
    const auto decided = lists_name(fs_, version_path(root_, removal.version), kManifestName);
    if (decided && !*decided) run_.lock()->abandoned.insert(removal.version);
    if (!first) first = std::move(removed).error();
  }
  if (first) return fail(std::move(*first));
  return gone;
}

Status VersionCleaner::discard(const VersionName& version, const std::string& rank_directory, std::uint32_t rank) {
  SW_TRY(check_newest());
  const auto manifest = read_manifest(fs_, root_, version);
  const bool undecided = !manifest && manifest.error().kind == ErrorKind::kNotFound;
  if (!undecided && !manifest) return fail(manifest.error());
  if (!undecided && manifest->decision != Decision::kAbort) return {};
  std::string directory = version_path(root_, version);
  Status removed;
  // The subdirectory itself stays: other ranks of the group may be about to write there.
  if (!rank_directory.empty()) {
    directory += "/" + rank_directory;
    removed = check_own_directory(fs_, directory);
  }
  if (removed) {
    removed =
        remover_.unlink_if(directory, [&](std::string_view name) { return rank_of_file(name) == std::optional(rank); });
  }
  if (!removed && removed.error().kind != ErrorKind::kNotFound) return removed;
  return {};
}

void VersionCleaner::log_unreadable(const Catalog& catalog) {
  const std::lock_guard lock(mutex_);
  for (const CatalogEntry& entry : catalog.entries) {
    if (entry.state != VersionState::kUnreadable || !logged_unreadable_.insert(entry.name).second) continue;
    log_.warn("the checkpoint of step {} is not touched, because its manifest cannot be read: {}", entry.name.step,
              entry.error->to_string());
  }
}

Result<std::vector<VersionInfo>> VersionCleaner::clean_up(const RetentionPolicy& policy, Need need) {
  SW_TRY(check_newest());
  SW_ASSIGN(const Catalog catalog, scan_catalog(fs_, root_, &cache_));
  // The state of the run is read after the scan: a version is noted as being decided before it becomes visible. If it
  // were read before the scan, a commit that became visible in between would look settled although it is not synced
  // yet, and the version it replaces would be deleted.
  RunState run = *run_.lock();
  // Also after the scan: a version is held before its commit is reported, and until its copy is on the lower tier.
  if (held_) run.held = held_();
  if (run.attempt == 0)
    return fail(ErrorKind::kInternal, "a clean-up was started before an attempt was claimed", root_);
  // Without our own list of adopted versions, what is live is a guess: good enough to read by, not to delete by.
  if (!catalog.newest_attempt)
    return corrupt("nothing is deleted, because the file of this attempt cannot be read", control_path(root_));
  log_unreadable(catalog);
  std::vector<VersionInfo> live = catalog.live_versions();
  if (need == Need::kRoutine && !live.empty() && run.doubtful.contains(name_of(live.back()))) return live;
  std::vector<Removal> removals = removable(catalog, run, policy, need);
  std::erase_if(removals, [&](const Removal& removal) { return remover_.left_alone(removal.version); });
  SW_ASSIGN(const std::set<VersionName> gone, remove_all(removals));
  std::erase_if(live, [&](const VersionInfo& version) { return gone.contains(name_of(version)); });
  return live;
}

}  // namespace slackwater
