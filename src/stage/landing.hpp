// Landing: waits, on a thread of its own, for copies that a device carries out by itself, in the order they were queued, and
// tells when the bytes of each slab are there. The thread sleeps while it waits.
// Thread rule: expect() from any thread. Lifetime: the destructor returns when everything expected has landed; events and
// callbacks must stay valid until then.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <stop_token>
#include <thread>
#include <vector>

#include "device/async_device.hpp"
#include "slackwater/error.hpp"

namespace slackwater {

struct Arrival {
  std::vector<std::shared_ptr<Event>> events;
  std::move_only_function<void(Status)> landed;  // once, from the landing thread; the first error of the events
};

class Landing {
 public:
  Landing();  // std::system_error when no thread can be had
  ~Landing();
  Landing(const Landing&) = delete;
  Landing& operator=(const Landing&) = delete;

  void expect(Arrival arrival);

 private:
  void run(const std::stop_token& stop);

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<Arrival> expected_;  // guarded by mutex_
  std::jthread thread_;           // started last
};

}  // namespace slackwater
