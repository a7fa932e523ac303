#include "engine/cleaner_thread.hpp"

#include <exception>
#include <system_error>
#include <utility>
#include <vector>

#include "base/thread.hpp"

namespace slackwater {
namespace {

// Space may become free later than its file is deleted: the kernel ends the writes of a killed process after the
// process itself, and some file systems free blocks with their next transaction. A rank that may not delete pauses too,
// because rank 0 may be deleting.
constexpr std::chrono::milliseconds kRoomPause{200};
constexpr int kRoomPauses = 5;

}  // namespace

CleanerThread::CleanerThread(bool deletes, const RetentionPolicy& policy, VersionStoreAccess& versions,
                             Guarded<LiveVersions>& live, Guarded<BackgroundErrors>& errors, const Log& log)
    : deletes_(deletes), policy_(policy), versions_(versions), live_(live), errors_(errors), log_(log) {}

CleanerThread::~CleanerThread() { stop(); }

void CleanerThread::start() {
  if (!deletes_ || thread_.joinable()) return;
  thread_ = start_thread("sw-clean", [this](const std::stop_token& stop) { loop(stop); });
}

void CleanerThread::begin_deleting() {
  if (deletes_) return;
  deletes_ = true;
  try {
    start();
  } catch (const std::system_error& trouble) {
    deletes_ = false;
    log_.error("old checkpoints of this node are not deleted, because its thread could not be started: {}",
               trouble.what());
  }
}

void CleanerThread::request(Need need) {
  if (!deletes_) return;
  {
    const std::lock_guard lock(mutex_);
    ++requested_;
    if (need == Need::kSpace) need_ = need;
  }
  changed_.notify_all();
}

void CleanerThread::note_committed(const Manifest& manifest, bool pinned) {
  if (live_.lock()->add_committed(manifest, pinned)) request();
}

void CleanerThread::run_now() {
  std::unique_lock lock(mutex_);
  const std::uint64_t wanted = ++requested_;
  need_ = Need::kSpace;
  changed_.notify_all();
  changed_.wait(lock, [&] { return done_ >= wanted || stopped_; });
}

bool CleanerThread::wait_idle(std::optional<std::chrono::steady_clock::time_point> deadline) {
  std::unique_lock lock(mutex_);
  const auto idle = [&] { return done_ >= requested_ || stopped_; };
  if (deadline) return changed_.wait_until(lock, *deadline, idle);
  changed_.wait(lock, idle);
  return true;
}

std::unique_lock<std::mutex> CleanerThread::block_deletes() {
  if (!deletes_) return {};
  static_cast<void>(wait_idle({}));
  return std::unique_lock(running_);
}

void CleanerThread::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
  thread_.request_stop();
  if (thread_.joinable()) thread_.join();
}

void CleanerThread::loop(const std::stop_token& stop) {
  while (true) {
    std::uint64_t serving = 0;
    Need need = Need::kRoutine;
    {
      std::unique_lock lock(mutex_);
      if (!changed_.wait(lock, stop, [&] { return requested_ > done_; }) || stop.stop_requested()) return;
      serving = requested_;
      need = std::exchange(need_, Need::kRoutine);
    }
    {
      const std::lock_guard running(running_);
      clean_up(need);
    }
    {
      const std::lock_guard lock(mutex_);
      done_ = serving;
    }
    changed_.notify_all();
  }
}

void CleanerThread::clean_up(Need need) {
  if (!live_.lock()->begin_clean_up()) return;
  std::optional<std::vector<VersionInfo>> left;
  try {
    VersionStore& store = versions_.without_lock();
    auto cleaned = store.clean_up(policy_, need);
    if (cleaned) {
      left = std::move(*cleaned);
    } else {
      log_.warn("old checkpoints could not be removed: {}", cleaned.error().to_string());
      errors_.lock()->add(cleaned.error());
      if (auto catalog = store.scan_cached()) left = catalog->live_versions();
      live_.lock()->ask_to_sweep();
    }
  } catch (const std::exception& trouble) {
    log_.warn("old checkpoints could not be removed: {}", trouble.what());
    live_.lock()->ask_to_sweep();
  }
  live_.lock()->end_clean_up(std::move(left));
}

std::function<bool()> CleanerThread::room_maker() {
  if (!versions_.exists()) return [] { return false; };  // only parts are saved, and nothing is ours to delete
  VersionStore& store = versions_.without_lock();
  // Counted from before the call that found no space: a version deleted since then is also worth another try.
  return [this, &store, before = store.removed_count(), pauses = 0]() mutable {
    if (deletes_) {
      run_now();
      const std::uint64_t now = store.removed_count();
      if (std::exchange(before, now) != now) return true;
      if (!store.removed_lately()) return false;
    }
    if (pauses++ == kRoomPauses) return false;
    std::this_thread::sleep_for(kRoomPause);
    return true;
  };
}

}  // namespace slackwater
