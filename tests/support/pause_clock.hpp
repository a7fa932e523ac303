// PauseClock: a clock that stands still while its reader works, and moves while its reader only pauses. So a pause is
// over soon, and no deadline passes because the machine is busy.
// Thread rule: thread-safe. Lifetime: what `calls` asks outlives it.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <utility>

#include "os/clock.hpp"

namespace slackwater::test {

class PauseClock final : public Clock {
 public:
  // `calls`: how many calls to storage or to a store its reader has made. `step`: how far the clock moves at once.
  PauseClock(std::function<std::uint64_t()> calls, Duration step) : calls_(std::move(calls)), step_(step) {}

  [[nodiscard]] TimePoint now() const override {
    constexpr int kReads = 32;  // more than there are between the calls of one look at what others have said
    const std::lock_guard lock(mutex_);
    if (const std::uint64_t calls = calls_(); std::exchange(seen_, calls) != calls) reads_ = 0;
    if (++reads_ > kReads) now_ += step_;
    return now_;
  }
  [[nodiscard]] std::int64_t wall_unix_ms() const override { return SystemClock().wall_unix_ms(); }

 private:
  const std::function<std::uint64_t()> calls_;
  const Duration step_;
  mutable std::mutex mutex_;
  mutable std::uint64_t seen_ = 0;  // guarded by mutex_, as all below
  mutable int reads_ = 0;           // since the last call
  mutable TimePoint now_{std::chrono::hours(1)};
};

}  // namespace slackwater::test
