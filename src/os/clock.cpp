#include "os/clock.hpp"

namespace slackwater {

std::int64_t SystemClock::wall_unix_ms() const {
  const auto since_epoch = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(since_epoch).count();
}

}  // namespace slackwater
