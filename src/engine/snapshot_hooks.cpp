#include "engine/snapshot_hooks.hpp"

#include <utility>

namespace slackwater {

void SnapshotHooks::set_cancel(std::function<void(Error)> cancel) {
  const std::lock_guard lock(cancel_mutex_);
  cancel_ = std::move(cancel);
}

void SnapshotHooks::set_queue_all(std::function<void()> queue_all) {
  const std::lock_guard lock(queue_all_mutex_);
  queue_all_ = std::move(queue_all);
  if (all_wanted_) queue_all_();
}

void SnapshotHooks::cancel(const Error& error) {
  const std::lock_guard lock(cancel_mutex_);
  if (cancel_) cancel_(error);
}

void SnapshotHooks::want_all_queued() {
  const std::lock_guard lock(queue_all_mutex_);
  if (std::exchange(all_wanted_, true) || !queue_all_) return;
  queue_all_();
}

void SnapshotHooks::retire() {
  {
    const std::lock_guard lock(queue_all_mutex_);
    queue_all_ = nullptr;
  }
  const std::lock_guard lock(cancel_mutex_);
  cancel_ = nullptr;
}

}  // namespace slackwater
