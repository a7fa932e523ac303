// Pause: how long to sleep between two polls of MPI that found nothing. MPI's own waiting calls spin, on a core that
// the simulation needs. A pause is an eighth of the time waited so far. So a short wait loses little time, and a long
// one costs next to nothing.
// Thread rule: one thread.
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

namespace slackwater {

class Pause {
 public:
  void wait() {
    constexpr std::chrono::nanoseconds kShortest = std::chrono::microseconds(20);
    constexpr std::chrono::nanoseconds kLongest = std::chrono::milliseconds(8);  // a poll takes some 30 us
    const std::chrono::nanoseconds waited = Time::now() - began_;
    std::this_thread::sleep_for(std::clamp(waited / 8, kShortest, kLongest));
  }
  void restart() { began_ = Time::now(); }  // a message has arrived

 private:
  using Time = std::chrono::steady_clock;
  Time::time_point began_ = Time::now();
};

}  // namespace slackwater
