// PublishGate: whether a flush may still create, remove and publish names. Whoever takes over closes it: the next
// trainer, or the next attempt. A flush that hangs in the file system cannot be stopped, but once the gate is closed it
// begins nothing that others could see.
// Owner: whoever starts the flush. Thread rule: one thread flushes; close() and the questions may come from others.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace slackwater {

class PublishGate {
 public:
  // Waits for a decision that is being written at that moment, and for nothing else: the disk may be slow.
  void close() {
    std::unique_lock lock(mutex_);
    open_ = false;
    changed_.wait(lock, [this] { return !deciding_; });
  }
  // The same, but false if the decision is still being written after `limit`. It may come into force later.
  [[nodiscard]] bool close_within(std::chrono::milliseconds limit) {
    std::unique_lock lock(mutex_);
    open_ = false;
    return changed_.wait_for(lock, limit, [this] { return !deciding_; });
  }
  [[nodiscard]] bool open() const {
    const std::lock_guard lock(mutex_);
    return open_;
  }
  // After close(). False: the flush is still in an operation on names, such as an unlink. Until that ends, nobody else
  // may write files of the same names.
  [[nodiscard]] bool wait_idle(std::chrono::milliseconds limit) const {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, limit, [this] { return operations_ == 0; });
  }

  // How many slabs are written. Whoever waits for the flush waits as long as this grows.
  [[nodiscard]] std::uint32_t progress() const { return progress_; }

  // For the flush.
  void note_progress() { ++progress_; }
  // Calls `publish` unless the gate is closed, and keeps it from closing meanwhile. False: it is closed.
  template <class Publish>
  [[nodiscard]] bool pass(const Publish& publish) {
    {
      const std::lock_guard lock(mutex_);
      if (!open_) return false;
      deciding_ = true;
    }
    const End end{*this, true};
    publish();
    return true;
  }
  // An operation on names, or what `refuse` returns if the gate is closed. Those of a decision still pass then.
  template <class Operate, class Refuse>
  [[nodiscard]] auto operate(const Operate& operation, const Refuse& refuse) -> decltype(operation()) {
    {
      const std::lock_guard lock(mutex_);
      if (!open_ && !deciding_) return refuse();
      ++operations_;
    }
    const End end{*this, false};
    return operation();
  }

 private:
  // Also after an exception.
  struct End {
    PublishGate& gate;
    const bool of_decision;
    End(PublishGate& in, bool decision) : gate(in), of_decision(decision) {}
    ~End() {
      const std::lock_guard lock(gate.mutex_);
      if (of_decision) {
        gate.deciding_ = false;
      } else {
        --gate.operations_;
      }
      gate.changed_.notify_all();
    }
    End(const End&) = delete;
    End& operator=(const End&) = delete;
  };

  mutable std::mutex mutex_;  // guards what follows
  mutable std::condition_variable changed_;
  bool open_ = true;
  bool deciding_ = false;
  unsigned operations_ = 0;
  std::atomic<std::uint32_t> progress_ = 0;  // not guarded
};

}  // namespace slackwater
