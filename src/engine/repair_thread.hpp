// RepairThread: after a restore that took files from a lower tier, copies what tier 0 lacks back to it, on a thread of
// its own (sw-repair). Nobody waits for it. Whatever keeps it from repairing is logged, and the next restore tries
// again.
// Owned by the Restorer. Thread rule: thread-safe; stop() belongs to close().
// Lifetime: stopped before the cleaner and the version store end.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>

#include "engine/engine_shared.hpp"
#include "tiers/version_repair.hpp"

namespace slackwater {

class RepairThread {
 public:
  explicit RepairThread(EngineShared& shared) : shared_(shared) {}

  void add(RepairOrder order, const VersionInfo& version);  // starts the thread if there is none yet
  // Adds nothing any more, and the repair under way ends soon; a later run continues it. True: none is under way.
  [[nodiscard]] bool request_stop();
  void stop();  // the same, and waits for its end

 private:
  struct Job {
    RepairOrder order;
    VersionInfo version;
  };
  void loop(const std::stop_token& stop);
  void repair(const Job& job, const std::stop_token& stop);
  [[nodiscard]] Status copy_and_publish(const Job& job, const std::stop_token& stop);
  // True: published, or it should not be. False: the files of other ranks are not there yet.
  [[nodiscard]] Result<bool> publish(VersionRepair& repair, const Job& job);
  [[nodiscard]] Result<std::optional<std::string>> why_not(const Job& job) const;

  EngineShared& shared_;
  const Options& options_ = shared_.options;
  const Log& log_ = shared_.log;

  std::mutex mutex_;  // guards what follows
  std::condition_variable_any changed_;
  std::deque<Job> jobs_;
  bool running_ = false;  // a repair
  bool stopped_ = false;

  std::jthread thread_;  // started last
};

}  // namespace slackwater
