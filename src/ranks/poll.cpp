#include "ranks/poll.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace slackwater {

Poll::Poll(const Clock& clock, Deadline deadline)
    : clock_(clock), deadline_(std::move(deadline)), began_(clock.now()) {}

Result<bool> Poll::again() {
  constexpr Duration kShortest = std::chrono::milliseconds(1);
  constexpr Duration kLongest = std::chrono::milliseconds(100);
  const TimePoint now = clock_.now();
  if (!deadline_.stop.stop_requested()) {
    if (now >= deadline_.at) return false;
    const Duration pause = std::clamp<Duration>((now - began_) / 8, kShortest, kLongest);
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, deadline_.stop, std::min<Duration>(pause, deadline_.at - now), [] { return false; });
  }
  if (deadline_.stop.stop_requested())
    return fail(ErrorKind::kClosed, "the checkpointer was closed while it waited for other ranks");
  return true;
}

Result<bool> poll_once(RankTransport& transport, const Clock& clock, const Topic& topic,
                       const std::vector<std::uint32_t>& ranks, const std::stop_token& stop,
                       const RankTransport::Take& take) {
  auto received = transport.await(topic, ranks, {clock.now(), stop}, take);
  if (!received && received.error().retryable) return false;
  return received;
}

}  // namespace slackwater
