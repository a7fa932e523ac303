// SnapshotHooks: how a snapshot reaches the engine while it is in flight: to be given up, or to have all its copies
// queued. Both are functions that the engine sets. Once the snapshot has ended, retire() drops them.
// Owned by Snapshot::Impl. Thread rule: thread-safe. The hooks run with a lock held (docs/threading.md), and never
// after retire() has returned.
#pragma once

#include <functional>
#include <mutex>

#include "slackwater/error.hpp"

namespace slackwater {

class SnapshotHooks {
 public:
  void set_cancel(std::function<void(Error)> cancel);  // how to give the snapshot up
  // How to have all its copies queued. Called at once if a fence came first.
  void set_queue_all(std::function<void()> queue_all);

  // Gives the snapshot up. No effect before set_cancel() and after retire().
  void cancel(const Error& error);
  // The trainer wants to go on, so no copy is held back any longer. Does not wait.
  void want_all_queued();
  // Waits for a hook that is running, and drops both.
  void retire();

 private:
  std::mutex cancel_mutex_;  // held while cancel_ runs, so that retire() waits for it
  std::function<void(Error)> cancel_;

  std::mutex queue_all_mutex_;  // held while queue_all_ runs; a leaf but for the stager's lock
  std::function<void()> queue_all_;
  bool all_wanted_ = false;  // a fence was called
};

}  // namespace slackwater
