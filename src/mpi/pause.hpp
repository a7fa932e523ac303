// Pause: what to do between two looks at MPI while nothing has come. MPI's own waiting calls spin on a core that belongs to the
// simulation. An eighth of the time waited so far, so that who waits briefly loses little and who waits long costs nothing.
// One thread.
#pragma once

#include <chrono>

namespace slackwater {

class Pause {
 public:
  void wait();
  void restart() { began_ = Time::now(); }  // something has come

 private:
  using Time = std::chrono::steady_clock;
  Time::time_point began_ = Time::now();
};

}  // namespace slackwater
