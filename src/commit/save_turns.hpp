// SaveTurns: which steps are saved where several ranks skip steps when they are busy (on_busy=skip): the same on all of
// them, decided by rank 0 alone and ahead of time, so that no trainer waits to be told. A turn is a number, and belongs
// to the first step from there on that no earlier turn took. There are as many turns as snapshots may be in flight: so
// many steps are saved at the start, and whenever a step has ended rank 0 gives a new turn, a little ahead of training.
// Rank 0's numbers grow, so every rank that hears of a turn in time finds the same step for it; one that hears of it
// when that step has passed knows which one it missed. Thread rule: one thread at a time (the engine's mutex).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "os/clock.hpp"

namespace slackwater {

class SaveTurns {
 public:
  explicit SaveTurns(std::size_t in_flight) : turns_(in_flight, 0) {}

  // At every save(), in the order of the steps: whether this one is saved.
  [[nodiscard]] bool take(std::uint64_t step, TimePoint now);
  // A turn that rank 0 gives. Answers the step it belongs to if that has passed unsaved.
  [[nodiscard]] std::optional<std::uint64_t> add(std::uint64_t from);

  // Of rank 0: where a turn given now begins: as many calls of save() on as there were of late, in the time that word of
  // it may take to reach all.
  [[nodiscard]] std::uint64_t next(TimePoint now) const;
  // A step was given up, perhaps because its turn came too late: from now on they are given earlier.
  void give_earlier();

 private:
  std::deque<std::uint64_t> turns_;    // not taken yet, growing
  std::deque<std::uint64_t> skipped_;  // steps that a turn still to come may belong to, growing
  std::uint64_t last_turn_ = 0;
  std::optional<std::uint64_t> last_step_;
  std::uint64_t stride_ = 1;     // between the last two steps
  std::deque<TimePoint> calls_;  // of save(), of late
  Duration lead_ = std::chrono::milliseconds(250);
};

}  // namespace slackwater
