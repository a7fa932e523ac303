#include "tiers/tier_cleaner.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "base/thread.hpp"
#include "version/attempt_files.hpp"
#include "version/old_uploads.hpp"
#include "version/pins.hpp"

namespace slackwater {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFirstCleanRetry{250};
constexpr milliseconds kLastCleanRetry{60'000};

void keep_first(Status& first, Status next) {
  if (first && !next) first = std::move(next);
}

}  // namespace

TierCleaner::TierCleaner(const TierWork& work, const RetentionPolicy& policy) : work_(work), policy_(policy) {}

TierCleaner::~TierCleaner() { stop(); }

void TierCleaner::begin_attempt(VersionStore& store, std::uint32_t attempt, const std::set<VersionName>& found,
                                bool another_place) {
  store.add_own_copies(found);
  {
    const std::lock_guard lock(mutex_);
    todo_.store = &store;
    todo_.attempt = attempt;
    todo_.another_place = another_place;
    todo_.own.insert(found.begin(), found.end());
  }
  if (!thread_.joinable()) {
    thread_ =
        start_thread(fmt::format("sw-clean-{}", work_.number), [this](const std::stop_token& stop) { loop(stop); });
  }
  request(Need::kRoutine);  // what killed runs left behind
}

void TierCleaner::note_copy(const VersionName& version) {
  const std::lock_guard lock(mutex_);
  if (!todo_.own.insert(version).second) return;
  todo_.store->add_own_copies({version});
}

void TierCleaner::request(Need need) {
  {
    const std::lock_guard lock(mutex_);
    if (todo_.need != Need::kSpace) todo_.need = need;
    if (!failed_) work_.backlog.set_cleaning(true);
  }
  changed_.notify_all();
}

void TierCleaner::remove(const std::vector<DeleteNote>& deleted) {
  {
    const std::lock_guard lock(mutex_);
    todo_.removals.insert(deleted.begin(), deleted.end());
    if (!failed_) work_.backlog.set_cleaning(true);
  }
  changed_.notify_all();
}

void TierCleaner::stop() {
  thread_.request_stop();
  if (thread_.joinable()) thread_.join();
}

void TierCleaner::loop(const std::stop_token& stop) {
  milliseconds retry = kFirstCleanRetry;
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    if (failed_) {
      changed_.wait_for(lock, stop, retry, [] { return false; });
      retry = std::min(2 * retry, kLastCleanRetry);
    } else {
      changed_.wait(lock, stop, [this] { return todo_.due(); });
    }
    if (stop.stop_requested()) return;
    const Work todo = todo_;
    todo_.need.reset();
    todo_.removals.clear();
    lock.unlock();

    Status done;
    try {
      done = remove_all(todo);
      if (todo.need) keep_first(done, clean_up(todo));
    } catch (const std::exception& trouble) {
      done = fail(ErrorKind::kOutOfMemory, fmt::format("a clean-up failed: {}", trouble.what()), work_.tier.root());
    }
    const ErrorKind kind = done ? ErrorKind::kInternal : done.error().kind;
    if (!done && kind == ErrorKind::kClosed) return;
    const bool failed = !done && kind != ErrorKind::kAborted;  // kAborted: another run has the tier, and deletes there
    if (kind != ErrorKind::kAborted) work_.backlog.note_clean_up(done);

    lock.lock();
    failed_ = failed;
    if (failed) {
      if (todo.need && !todo_.need) todo_.need = todo.need;
      todo_.removals.insert(todo.removals.begin(), todo.removals.end());
    } else {
      retry = kFirstCleanRetry;
    }
    // What failed is tried again, but nobody waits for it: close() would, for as long as the tier refuses.
    if (failed || !todo_.due()) work_.backlog.set_cleaning(false);
  }
}

Status TierCleaner::remove_all(const Work& todo) {
  Status first;
  for (const DeleteNote& deleted : todo.removals) {
    Status removed = follow_delete(todo, deleted);
    if (removed) {
      work_.backlog.forget(deleted.version);
    } else {
      keep_first(first, std::move(removed));
    }
  }
  return first;
}

// What is gone by now, after an earlier try, is fine. The note on tier 0 goes last: until then, the next run tries
// again.
Status TierCleaner::follow_delete(const Work& todo, const DeleteNote& deleted) {
  const VersionName& version = deleted.version;
  // An empty directory in the place of a mount does not say that the tier has deleted anything.
  SW_ASSIGN(const std::uint32_t newest, newest_attempt_number(work_.tier.fs(), work_.tier.root()));
  if (newest < todo.attempt) {
    return fail(ErrorKind::kIo,
                fmt::format("the attempt of this run is not on the tier any more, so step {} is not deleted there now; "
                            "check that it is mounted",
                            version.step),
                work_.tier.root());
  }
  const auto there = read_manifest(work_.tier.fs(), work_.tier.root(), version);
  const ErrorKind kind = there ? ErrorKind::kInternal : there.error().kind;
  if (!there && kind != ErrorKind::kNotFound && kind != ErrorKind::kCorrupt && kind != ErrorKind::kUnsupported)
    return fail(there.error());
  if (is_meant(deleted, there ? there->run : std::string())) {
    Status removed = todo.store->remove(version, "delete() was called", newest);
    if (!removed && removed.error().kind != ErrorKind::kNotFound) return removed;
  } else {
    work_.log.info("step {} (attempt {}) stays on {}: it is from a different run than the deleted one", version.step,
                   version.attempt, work_.tier.root());
  }
  if (todo.another_place) return {};
  return erase_delete_note(work_.local, work_.local_root, version, deleted.tier);
}

Status TierCleaner::clean_up(const Work& todo) {
  // Whatever is pinned on tier 0 is pinned here, before anything is deleted.
  SW_TRY(copy_pins(*todo.store));
  Status done;
  if (const auto cleaned = todo.store->clean_up(policy_, *todo.need); !cleaned) done = fail(cleaned.error());
  keep_first(done, abandon_uploads(todo));
  return done;
}

Status TierCleaner::copy_pins(VersionStore& store) {
  SW_ASSIGN(const auto above, list_pins(work_.local, work_.local_root));
  if (above.empty()) return {};
  SW_ASSIGN(const auto here, list_pins(work_.tier.fs(), work_.tier.root()));
  SW_ASSIGN(const Catalog catalog, store.scan_cached());
  for (const CatalogEntry& entry : catalog.entries) {
    if (entry.state == VersionState::kLive && above.contains(entry.name) && !here.contains(entry.name))
      SW_TRY(store.pin(entry.name));
  }
  return {};
}

// In an object store, parts of uploads that were cut off take space that no list of files shows. Those of copies that
// wait here are continued. Those of earlier attempts that are there at the first list are debris; later ones are not
// ours, unless this run began the copy.
Status TierCleaner::abandon_uploads(const Work& todo) {
  const auto uploads = work_.tier.fs().list_uploads(work_.tier.root());
  if (!uploads) {
    const ErrorKind kind = uploads.error().kind;
    if (kind != ErrorKind::kUnsupported && kind != ErrorKind::kPermission) return fail(uploads.error());
    if (!std::exchange(told_that_uploads_are_not_listed_, true)) {
      work_.log.warn("uploads that killed runs left on {} stay there, because they cannot be listed: {}",
                     work_.tier.root(), uploads.error().to_string());
    }
    return {};
  }
  const bool first_list = std::exchange(uploads_listed_for_, todo.attempt) != todo.attempt;
  const std::set<VersionName> held = work_.backlog.held();
  Status done;
  for (const PendingUpload& upload : *uploads) {
    const auto version = version_of_upload(upload.path, work_.tier.root());
    if (!version) continue;
    if (first_list && version->attempt < todo.attempt) found_uploads_.insert(*version);
    const bool ours = todo.own.contains(*version) || found_uploads_.contains(*version);
    if (!ours || held.contains(*version) || version->attempt > todo.attempt) continue;
    Status abandoned = work_.tier.fs().abandon_upload(upload);
    if (abandoned) work_.log.info("aborted the upload of {}: nobody continues it", upload.path);
    keep_first(done, std::move(abandoned));
  }
  return done;
}

}  // namespace slackwater
