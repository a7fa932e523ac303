// SkipSchedule: which steps are saved if several ranks skip steps while they are busy (on_busy=skip). All ranks must
// save the same steps. Rank 0 alone decides, ahead of time, so no trainer has to wait for the decision.
//
// A turn is a step number. It belongs to the first step from that number on that no earlier turn has taken. There are
// as many turns as snapshots may be in flight: that many steps are saved at the start, and whenever a step has ended,
// rank 0 gives a new turn, a little ahead of training. The numbers grow, so every rank that receives a turn in time
// finds the same step for it. A rank that receives it too late knows which step it missed.
// Owned by SkipThread. Thread rule: one thread at a time, under SkipThread::mutex_.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "os/clock.hpp"

namespace slackwater {

class SkipSchedule {
 public:
  explicit SkipSchedule(std::size_t in_flight) : turns_(in_flight, 0) {}

  // Called by every save(), in the order of the steps. Returns whether this step is saved.
  [[nodiscard]] bool take(std::uint64_t step, TimePoint now);
  // Adds a turn from rank 0. If the step that it belongs to has passed unsaved, returns that step.
  [[nodiscard]] std::optional<std::uint64_t> add(std::uint64_t from);

  // For rank 0: the number of a turn that is given now. It is as many calls of save() ahead as there were recently in
  // the time that a message may take to reach all ranks.
  [[nodiscard]] std::uint64_t next(TimePoint now) const;
  // A step was given up, perhaps because its turn came too late. From now on, turns are given earlier.
  void give_earlier();

 private:
  std::deque<std::uint64_t> turns_;    // not taken yet, ascending
  std::deque<std::uint64_t> skipped_;  // steps that a later turn may belong to, ascending
  std::uint64_t last_turn_ = 0;
  std::optional<std::uint64_t> last_step_;
  std::uint64_t stride_ = 1;     // between the last two steps
  std::deque<TimePoint> calls_;  // recent calls of save()
  Duration lead_ = std::chrono::milliseconds(250);
};

}  // namespace slackwater
