// Clock: monotonic time for decisions, wall time for people. Virtual so that tests need not wait.
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
  [[nodiscard]] std::int64_t wall_unix_ms() const override;
};

}  // namespace slackwater
