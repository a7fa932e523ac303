#include "stage/landing.hpp"

#include <utility>

#include "base/thread.hpp"

namespace slackwater {

Landing::Landing() : thread_(start_thread("sw-land", [this](std::stop_token stop) { run(stop); })) {}

Landing::~Landing() {
  thread_.request_stop();
  thread_.join();
}

void Landing::expect(Arrival arrival) {
  {
    const std::lock_guard lock(mutex_);
    expected_.push_back(std::move(arrival));
  }
  changed_.notify_one();
}

void Landing::run(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  // False only when asked to stop with nothing left: what is on its way always lands.
  while (changed_.wait(lock, stop, [this] { return !expected_.empty(); })) {
    Arrival arrival = std::move(expected_.front());
    expected_.pop_front();
    lock.unlock();
    Status status;
    for (const auto& event : arrival.events) {
      // All of them, also after an error: a copy that still runs must not find its slab in other hands.
      if (Status waited = event->wait(); !waited && status) status = std::move(waited);
    }
    arrival.events.clear();
    arrival.landed(std::move(status));
    arrival = {};
    lock.lock();
  }
}

}  // namespace slackwater
