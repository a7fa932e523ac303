#include "commit/poll.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace slackwater {

Poll::Poll(const Clock& clock, Patience patience)
    : clock_(clock), patience_(std::move(patience)), began_(clock.now()) {}

Result<bool> Poll::again() {
  constexpr Duration kShortest = std::chrono::milliseconds(1);
  constexpr Duration kLongest = std::chrono::milliseconds(100);
  const TimePoint now = clock_.now();
  if (!patience_.stop.stop_requested()) {
    if (now >= patience_.deadline) return false;
    const Duration pause = std::clamp<Duration>((now - began_) / 8, kShortest, kLongest);
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, patience_.stop, std::min<Duration>(pause, patience_.deadline - now), [] { return false; });
  }
  if (patience_.stop.stop_requested())
    return fail(ErrorKind::kClosed, "the checkpointer was closed while it waited for other ranks");
  return true;
}

}  // namespace slackwater
