// Poll: the pauses between checks for something that another process changes. Each is an eighth of the time waited so
// far: short if the event comes soon, cheap if it comes late.
// Thread rule: one thread. Lifetime: one wait.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <stop_token>
#include <vector>

#include "os/clock.hpp"
#include "ranks/rank_transport.hpp"
#include "slackwater/error.hpp"

namespace slackwater {

class Poll {
 public:
  Poll(const Clock& clock, Deadline deadline);

  // Pauses. False: the deadline has passed. kClosed: told to stop.
  [[nodiscard]] Result<bool> again();

 private:
  const Clock& clock_;
  const Deadline deadline_;
  const TimePoint began_;
  std::mutex mutex_;
  std::condition_variable_any changed_;  // never notified: only a stop ends a pause early
};

// RankTransport::await() without waiting. A retryable error means "not there yet": a later poll may succeed.
[[nodiscard]] Result<bool> poll_once(RankTransport& transport, const Clock& clock, const Topic& topic,
                                     const std::vector<std::uint32_t>& ranks, const std::stop_token& stop,
                                     const RankTransport::Take& take);

}  // namespace slackwater
