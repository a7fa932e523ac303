// HeartbeatWait: one wait for ranks that may be busy. It ends when none of them has sent a heartbeat for a whole span,
// and starts again with each that one of them sends. One thread; lives for one wait. Lifetime: the SignsOfLife outlive
// it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "commit/poll.hpp"
#include "commit/signs_of_life.hpp"

namespace slackwater {

class HeartbeatWait {
 public:
  // `span`: how long to wait after a heartbeat; the first time until the deadline of `patience`. `passes_on`: somebody
  // waits for this rank in turn, so it sends a heartbeat for each that it sees.
  HeartbeatWait(SignsOfLife& signs, const Patience& patience, Duration span, bool passes_on);

  // Pauses. False: no time is left, and none of these ranks has sent a heartbeat. kClosed: told to stop.
  [[nodiscard]] Result<bool> again(const std::vector<std::uint32_t>& ranks);

 private:
  SignsOfLife& signs_;
  const std::stop_token stop_;
  const Duration span_;
  const bool passes_on_;
  const TimePoint first_look_;  // at heartbeats: a wait that is over soon needs none
  std::optional<Poll> poll_;
  unsigned looks_ = 0;
};

}  // namespace slackwater
