// Cleaner: removes old versions on a thread of its own (sw-clean), so that no commit, no copy and no trainer waits for a delete.
// Requests that come while it is busy become one further run.
// Thread rule: thread-safe; start() and stop() belong to the engine. Lifetime: stopped before what `clean_up` uses ends.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "commit/retention.hpp"

namespace slackwater {

class Cleaner {
 public:
  explicit Cleaner(std::function<void(Need)> clean_up);
  ~Cleaner();

  void start();  // idempotent; as start_thread(), it throws std::system_error
  void request(Need need = Need::kOrder);
  // For space that somebody needs now: returns when a run that began after this call has ended, or the cleaner was stopped.
  void run_now();
  // False: still busy at the deadline. No deadline: waits for as long as it takes.
  [[nodiscard]] bool wait_idle(std::optional<std::chrono::steady_clock::time_point> deadline);
  // Waits for what was requested so far. No run begins as long as the lock is held: who holds it alone deletes.
  [[nodiscard]] std::unique_lock<std::mutex> hold();
  void stop();  // after the run under way

 private:
  void loop(const std::stop_token& stop);

  const std::function<void(Need)> clean_up_;

  std::mutex running_;  // held over a run, and by hold(); taken before mutex_
  std::mutex mutex_;    // guards what follows
  std::condition_variable_any changed_;
  std::uint64_t requested_ = 0;  // runs asked for
  std::uint64_t done_ = 0;       // the last request that a finished run has served
  Need need_ = Need::kOrder;     // of the next run
  bool stopped_ = false;

  std::jthread thread_;  // started last
};

}  // namespace slackwater
