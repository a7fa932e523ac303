// HeartbeatWait: one wait for ranks that may be busy. It ends when none of them has sent a heartbeat for a whole span,
// and starts again with each heartbeat. Lives on the stack for one wait. Thread rule: one thread.
// Lifetime: the Heartbeat outlives it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ranks/heartbeat.hpp"
#include "ranks/poll.hpp"

namespace slackwater {

class HeartbeatWait {
 public:
  // The first wait lasts until `deadline`. After each heartbeat, the wait lasts for another `span`.
  HeartbeatWait(Heartbeat& heartbeat, const Deadline& deadline, Duration span, Heartbeat::Relay relay);

  // Pauses. False: the time is over, and none of these ranks has sent a heartbeat. kClosed: asked to stop.
  [[nodiscard]] Result<bool> again(const std::vector<std::uint32_t>& ranks);

 private:
  Heartbeat& heartbeat_;
  const std::stop_token stop_;
  const Duration span_;
  const bool relays_;
  const TimePoint first_check_;  // of heartbeats: a wait that ends soon needs none
  std::optional<Poll> poll_;
  unsigned polls_ = 0;
};

}  // namespace slackwater
