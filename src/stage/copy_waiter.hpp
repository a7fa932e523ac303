// CopyWaiter: waits for copies that run on a device, and reports when the bytes of each slab have arrived. It serves
// them in the order they were queued. While it waits, its thread, "sw-copy-wait", sleeps in the driver.
// Owner: Stager, which starts one for the first job that has device copies.
// Thread rule: expect() may be called from any thread; callbacks run on the waiter's thread.
// Lifetime: the destructor returns once every expected copy has arrived. Events and callbacks must stay valid until
// then.
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

struct AwaitedCopies {
  std::vector<std::shared_ptr<Event>> events;
  std::move_only_function<void(Status)> on_copied;  // called once, with the first error of the events
};

class CopyWaiter {
 public:
  CopyWaiter();  // throws std::system_error if no thread can be started
  ~CopyWaiter();
  CopyWaiter(const CopyWaiter&) = delete;
  CopyWaiter& operator=(const CopyWaiter&) = delete;

  void expect(AwaitedCopies copies);

 private:
  void run(const std::stop_token& stop);

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<AwaitedCopies> expected_;  // guarded by mutex_
  std::jthread thread_;                 // started last
};

}  // namespace slackwater
