#include "mpi/pause.hpp"

#include <algorithm>
#include <thread>

namespace slackwater {

void Pause::wait() {
  constexpr std::chrono::nanoseconds kShortest = std::chrono::microseconds(20);
  constexpr std::chrono::nanoseconds kLongest = std::chrono::milliseconds(8);  // a look is some 30 us
  const std::chrono::nanoseconds waited = Time::now() - began_;
  std::this_thread::sleep_for(std::clamp(waited / 8, kShortest, kLongest));
}

}  // namespace slackwater
