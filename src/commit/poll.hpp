// Poll: the pauses between looks at something that another process changes. An eighth of the time waited so far: close
// to the event when it comes soon, cheap when it comes late. One thread; lives for one wait.
#pragma once

#include <condition_variable>
#include <mutex>

#include "commit/coordinator.hpp"
#include "os/clock.hpp"
#include "slackwater/error.hpp"

namespace slackwater {

class Poll {
 public:
  Poll(const Clock& clock, Patience patience);

  // Pauses. False: no time is left. kClosed: told to stop.
  [[nodiscard]] Result<bool> again();

 private:
  const Clock& clock_;
  const Patience patience_;
  const TimePoint began_;
  std::mutex mutex_;
  std::condition_variable_any changed_;  // never notified: only a stop ends a pause early
};

}  // namespace slackwater
