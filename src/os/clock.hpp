// Clock: monotonic time for decisions, wall time for people. Virtual, so that tests need not wait.
// Owner: the engine. Thread rule: thread-safe.
#pragma once

#include <chrono>
#include <cstdint>

namespace slackwater {

using Duration = std::chrono::nanoseconds;
using TimePoint = std::chrono::steady_clock::time_point;

class Clock {
 public:
  virtual ~Clock() = default;
  [[nodiscard]] virtual TimePoint now() const = 0;
  [[nodiscard]] virtual std::int64_t wall_unix_ms() const = 0;
};

class SystemClock final : public Clock {
 public:
  [[nodiscard]] TimePoint now() const override { return std::chrono::steady_clock::now(); }
  [[nodiscard]] std::int64_t wall_unix_ms() const override {
    const auto since_epoch = std::chrono::system_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::milliseconds>(since_epoch).count();
  }
};

}  // namespace slackwater
