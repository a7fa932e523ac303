// HandClock: a clock that stands still until the test moves it, for engines whose threads read it meanwhile. With it a
// time-out comes when the test wants it, however busy the machine is.
// Thread rule: thread-safe. Lifetime: the time that it shows outlives it, and may be in memory that processes share.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "os/clock.hpp"

namespace slackwater::test {

class HandClock final : public Clock {
 public:
  explicit HandClock(const std::atomic<std::int64_t>& moved_ns) : moved_ns_(moved_ns) {}
  [[nodiscard]] TimePoint now() const override {
    return TimePoint(std::chrono::hours(1)) + std::chrono::nanoseconds(moved_ns_.load());
  }
  [[nodiscard]] std::int64_t wall_unix_ms() const override { return SystemClock().wall_unix_ms(); }

 private:
  const std::atomic<std::int64_t>& moved_ns_;
};

}  // namespace slackwater::test
