// SkipThread: which steps are saved if several ranks skip some (on_busy=skip). Rank 0 gives turns
// (ranks/skip_schedule.hpp), all ranks save the same steps, and no trainer waits for a message. Its thread, sw-turn,
// announces the turns on rank 0 and receives them on the others. docs/ranks.md has the protocol.
// Owned by EngineShared, which has none if no rank skips. Thread rule: thread-safe; start() and stop() belong to the
// engine.
// Lifetime: stopped before sw-plan and sw-commit, because it hands them the steps that this rank missed.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>

#include "engine/engine_shared.hpp"
#include "ranks/skip_schedule.hpp"

namespace slackwater {

class SkipThread {
 public:
  explicit SkipThread(EngineShared& shared) : shared_(shared), turns_(options_.in_flight) {}

  void start();  // idempotent; throws std::system_error, as start_thread() does
  void stop();

  [[nodiscard]] bool take(std::uint64_t step);  // at every save(): whether this step is saved
  void end(bool committed);                     // a step that was saved has ended
  void begin_attempt(std::uint32_t attempt);    // turns are counted anew
  void begin_anew();                            // after a restore; no turns until the next attempt

 private:
  void loop(const std::stop_token& stop);
  [[nodiscard]] Status take_turn(std::uint32_t attempt, std::uint64_t number, const std::stop_token& stop);
  [[nodiscard]] Result<std::uint64_t> next_turn(std::uint32_t attempt, std::uint64_t number,
                                                const std::stop_token& stop);
  void use_turn(std::uint32_t attempt, std::uint64_t from);

  EngineShared& shared_;
  const Options& options_ = shared_.options;
  CommitProtocol& protocol_ = *shared_.protocol;

  std::mutex mutex_;  // guards what follows
  std::condition_variable_any changed_;
  std::optional<std::uint32_t> attempt_;
  SkipSchedule turns_;
  std::uint64_t owed_ = 0;  // on rank 0: turns to give, one for each step that ended
  std::stop_source wait_;   // ends the wait for a turn when its attempt is over

  std::jthread thread_;  // started last
};

}  // namespace slackwater
