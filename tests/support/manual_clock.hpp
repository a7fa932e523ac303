// ManualClock: a clock that stands still until the test moves it.
#pragma once

#include <chrono>
#include <cstdint>

#include "os/clock.hpp"

namespace slackwater::test {

class ManualClock final : public Clock {
 public:
  [[nodiscard]] TimePoint now() const override { return now_; }
  [[nodiscard]] std::int64_t wall_unix_ms() const override { return 0; }
  void pass(Duration time) { now_ += time; }

 private:
  TimePoint now_{std::chrono::hours(1)};
};

}  // namespace slackwater::test
