// InFlight: the save jobs between save() and their end, and whether close() has begun. One lock guards both, so that a
// single moment decides: a step is accepted before close(), or not at all (docs/threading.md).
//   save(): accept() -> sw-sample: next_to_sample(), mark_sampled()
//   save(): accept() -> sw-plan: next_to_plan() -> copies, writes: mark_drained() -> sw-commit: front(), pop_front()
// Owned by EngineShared. Thread rule: thread-safe. In a forked child, usable() returns before it touches the lock.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <vector>

#include "engine/engine_status.hpp"
#include "engine/save_job.hpp"
#include "slackwater/engine.hpp"

namespace slackwater {

class InFlight {
 public:
  InFlight(const Options& options, std::shared_ptr<EngineStatus> engine_status);

  [[nodiscard]] Status usable()
      const;  // open, and not in a forked child; may be called with VersionStoreAccess's locks held
  [[nodiscard]] Error closed_error() const;

  // Runs `call` with the lock held, unless close() has begun. False: closed.
  [[nodiscard]] bool unless_closed(const std::function<void()>& call);
  // Accepts a step: from now on close() waits for it or names it. Calls `prepare` with the lock held, to start what the
  // save job needs. If `prepare` returns false, the job is not added. False: closed, and nothing was done.
  [[nodiscard]] bool accept(std::shared_ptr<SaveJob> job, const std::function<bool()>& prepare);
  // Adds a save job even while close() runs. For sw-turn, which close() joins first: other ranks wait for that step.
  void add(std::shared_ptr<SaveJob> job);

  // For save().
  [[nodiscard]] bool empty() const;
  [[nodiscard]] bool full() const;
  [[nodiscard]] bool wait_for_room();  // false: stalled; true also if close() has begun

  // For sw-sample: the next job with tensors on a device. Null: told to stop.
  [[nodiscard]] std::shared_ptr<SaveJob> next_to_sample(const std::stop_token& stop);
  void mark_sampled(SaveJob& job);

  // For sw-plan. Null: told to stop.
  [[nodiscard]] std::shared_ptr<SaveJob> next_to_plan(const std::stop_token& stop);
  [[nodiscard]] bool wait_sampled(const SaveJob& job, const std::stop_token& stop);  // false: told to stop
  void mark_drained(SaveJob& job);  // all its copies and writes have ended; sw-commit takes over

  // For sw-commit: the next save job to commit, whether or not it is drained. Null: told to stop, and there is none.
  [[nodiscard]] std::shared_ptr<SaveJob> front(const std::stop_token& stop);
  // False: told to stop, or `pause` has passed.
  [[nodiscard]] bool wait_drained(const SaveJob& job, const std::stop_token& stop,
                                  std::optional<std::chrono::milliseconds> pause = {});
  void pop_front();

  [[nodiscard]] std::vector<std::shared_ptr<Snapshot::Impl>> snapshots() const;  // by step
  // Requests a pin for this step. Null: it is not in flight, or sw-commit is past its pin. Then the caller must pin it.
  [[nodiscard]] std::shared_ptr<Snapshot::Impl> request_pin(std::uint64_t step);
  // Only a time-out is an Error here. Errors of snapshots stay in the snapshots.
  [[nodiscard]] Status wait_idle(Level level, std::optional<std::chrono::milliseconds> timeout);

  // For close(). False: another close() was first.
  [[nodiscard]] bool begin_close();
  // Only for close(), and briefly: a held job keeps everything that it captured.
  [[nodiscard]] std::vector<std::shared_ptr<SaveJob>> jobs() const;
  void drop_unplanned();  // marks them as drained; after sw-sample and sw-plan have ended

 private:
  using Instant = EngineStatus::Instant;
  using Lock = std::unique_lock<std::mutex>;
  void push(std::shared_ptr<SaveJob> job);  // needs mutex_

  const Options& options_;
  const std::shared_ptr<EngineStatus> engine_status_;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable_any changed_;
  std::deque<std::shared_ptr<SaveJob>> to_sample_;
  std::deque<std::shared_ptr<SaveJob>> to_plan_;
  std::deque<std::shared_ptr<SaveJob>> active_;  // by step; the front commits first
  bool closed_ = false;                          // checked under the same lock as active_ grows
};

}  // namespace slackwater
