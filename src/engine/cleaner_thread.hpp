// CleanerThread: removes old versions on a thread of its own (sw-clean), so that no commit, no copy and no trainer
// waits for a delete. version/retention.hpp says what may be deleted, and version/version_cleaner.hpp deletes it. If
// requests come while it is busy, one more run serves them all.
// Only rank 0 deletes, and with Options::node_local one rank of each other node. On other ranks there is no such
// thread, and every call returns at once.
// Owned by EngineShared. Thread rule: thread-safe; start() and stop() belong to the engine.
// Lifetime: stopped before the version store is closed, and after the threads that ask it to free space.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "base/guarded.hpp"
#include "base/log.hpp"
#include "engine/background_errors.hpp"
#include "engine/live_versions.hpp"
#include "engine/version_store_access.hpp"
#include "version/retention.hpp"

namespace slackwater {

class CleanerThread {
 public:
  CleanerThread(bool deletes, const RetentionPolicy& policy, VersionStoreAccess& versions, Guarded<LiveVersions>& live,
                Guarded<BackgroundErrors>& errors, const Log& log);
  ~CleanerThread();

  void start();  // idempotent; throws std::system_error, as start_thread() does
  // From now on this rank deletes: it leads the ranks of a node that has a directory of its own. From sw-plan.
  void begin_deleting();
  void request(Need need = Need::kRoutine);
  // A version was committed and is live now. Requests a run if that leaves something to delete.
  void note_committed(const Manifest& manifest, bool pinned);
  // False: still busy at the deadline. Without a deadline it waits as long as it takes.
  [[nodiscard]] bool wait_idle(std::optional<std::chrono::steady_clock::time_point> deadline);
  // Waits for the runs requested so far. No run begins while the lock is held, so only its holder deletes.
  [[nodiscard]] std::unique_lock<std::mutex> block_deletes();
  void stop();  // after the current run

  // For calls that may run out of space. The function makes room. True: try the call again.
  [[nodiscard]] std::function<bool()> room_maker();
  template <class Call>
  [[nodiscard]] auto with_room(const Call& call) -> decltype(call()) {
    const auto make_room = room_maker();
    auto result = call();
    while (!result && result.error().kind == ErrorKind::kNoSpace && make_room()) result = call();
    return result;
  }
  // The same for a call that has the store to itself. It releases the store's lock while space is freed, because
  // Planner::ensure_attempt() holds the cleaner and then takes that lock.
  template <class Call>
  [[nodiscard]] auto exclusive_with_room(const Call& call) {
    return with_room([&] { return versions_.exclusive(call); });
  }

 private:
  void loop(const std::stop_token& stop);
  void clean_up(Need need);
  // For a caller that needs space now. Returns when a run that began after this call has ended, or at stop().
  void run_now();

  std::atomic<bool> deletes_;
  const RetentionPolicy& policy_;
  VersionStoreAccess& versions_;
  Guarded<LiveVersions>& live_;
  Guarded<BackgroundErrors>& errors_;
  const Log& log_;

  std::mutex running_;  // held during a run, and by block_deletes(); taken before mutex_
  std::mutex mutex_;    // guards what follows
  std::condition_variable_any changed_;
  std::uint64_t requested_ = 0;  // runs asked for
  std::uint64_t done_ = 0;       // the last request that a finished run has served
  Need need_ = Need::kRoutine;   // of the next run
  bool stopped_ = false;

  std::jthread thread_;  // started last
};

}  // namespace slackwater
