#include "stage/copy_waiter.hpp"

#include <utility>

#include "base/thread.hpp"

namespace slackwater {

CopyWaiter::CopyWaiter() : thread_(start_thread("sw-copy-wait", [this](std::stop_token stop) { run(stop); })) {}

CopyWaiter::~CopyWaiter() {
  thread_.request_stop();
  thread_.join();
}

void CopyWaiter::expect(AwaitedCopies copies) {
  {
    const std::lock_guard lock(mutex_);
    expected_.push_back(std::move(copies));
  }
  changed_.notify_one();
}

void CopyWaiter::run(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  // A stop request ends the loop only once the queue is empty. A copy that has been queued cannot be called back, so
  // its slab must not be given away before the device is done with it.
  while (changed_.wait(lock, stop, [this] { return !expected_.empty(); })) {
    AwaitedCopies copies = std::move(expected_.front());
    expected_.pop_front();
    lock.unlock();
    Status status;
    for (const auto& event : copies.events) {
      // Wait for all of them, even after an error: a copy that still runs must not find its slab in other hands.
      if (Status waited = event->wait(); !waited && status) status = std::move(waited);
    }
    // The callback may end the last job, and the owner may then destroy the device, which must outlive its events. So
    // the events go first. What the callback holds goes before the next wait, which may last for ever.
    copies.events.clear();
    copies.on_copied(std::move(status));
    copies = {};
    lock.lock();
  }
}

}  // namespace slackwater
