#include "tiers/bandwidth_cap.hpp"

#include <algorithm>

namespace slackwater {
namespace {

constexpr std::chrono::milliseconds kPause{50};

}  // namespace

TimePoint BandwidthCap::book(std::uint64_t size_bytes, TimePoint now) {
  if (bytes_per_second_ == 0) return now;
  const std::lock_guard lock(mutex_);
  const TimePoint start = std::max(free_at_, now);
  const double seconds = static_cast<double>(size_bytes) / static_cast<double>(bytes_per_second_);
  free_at_ = start + std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
  return start;
}

bool BandwidthCap::wait(std::uint64_t size_bytes, const std::stop_token& stop) {
  const TimePoint start = book(size_bytes, std::chrono::steady_clock::now());
  std::mutex mutex;
  std::unique_lock lock(mutex);
  for (auto now = std::chrono::steady_clock::now(); now < start && !stop.stop_requested();
       now = std::chrono::steady_clock::now()) {
    ++pauses_;
    stopped_.wait_until(lock, stop, std::min(start, now + kPause), [] { return false; });
  }
  return !stop.stop_requested();
}

}  // namespace slackwater
