#include "sim/driver_lock.hpp"

#include <algorithm>

namespace slackwater::sim {
namespace {

std::uint64_t nanoseconds(Duration duration) {
  return static_cast<std::uint64_t>(std::max<Duration::rep>(duration.count(), 0));
}

}  // namespace

void DriverLock::wait(std::unique_lock<std::mutex>& lock) {
  const auto is_free = [this] { return !held_ || !exclusive_ || stopping_; };
  if (is_free()) return;
  const TimePoint arrived = Clock::now();
  ++stats_.waits;
  ++stats_.waiting;
  changed_.wait(lock, is_free);
  --stats_.waiting;
  const std::uint64_t waited = nanoseconds(std::chrono::duration_cast<Duration>(released_at_ - arrived));
  stats_.longest_wait_ns = std::max(stats_.longest_wait_ns, waited);
}

void DriverLock::spend(std::unique_lock<std::mutex>& lock, int call, std::uint64_t size_bytes) {
  const TimePoint begun = Clock::now();
  if (end_of(call, size_bytes, begun) == begun) return;
  const bool holds = exclusive_;
  held_ |= holds;
  while (!stopping_) {
    const TimePoint end = end_of(call, size_bytes, begun);  // again each time: the cost may have changed
    if (end <= Clock::now()) break;
    changed_.wait_until(lock, end);
  }
  if (!holds) return;
  held_ = false;
  released_at_ = std::min(std::max(end_of(call, size_bytes, begun), cost_changed_at_), Clock::now());
  const std::uint64_t held_ns = nanoseconds(std::chrono::duration_cast<Duration>(released_at_ - begun));
  stats_.held_ns += held_ns;
  stats_.longest_hold_ns = std::max(stats_.longest_hold_ns, held_ns);
  changed_.notify_all();
}

void DriverLock::set_cost(int call, Cost cost) {
  costs_.at(static_cast<std::size_t>(call)) = cost;
  cost_changed_at_ = Clock::now();
  changed_.notify_all();
}

void DriverLock::set_exclusive(bool exclusive) {
  exclusive_ = exclusive;
  if (held_) released_at_ = Clock::now();
  changed_.notify_all();
}

void DriverLock::reset() {
  costs_ = {};
  exclusive_ = true;
  stats_ = {};
}

TimePoint DriverLock::end_of(int call, std::uint64_t size_bytes, TimePoint begun) const {
  constexpr double kMiB = 1 << 20;
  const Cost& cost = costs_.at(static_cast<std::size_t>(call));
  const double by_size = static_cast<double>(cost.ns_per_mib) * static_cast<double>(size_bytes) / kMiB;
  return begun + Duration(cost.call_ns) + Duration(static_cast<Duration::rep>(by_size));
}

}  // namespace slackwater::sim
