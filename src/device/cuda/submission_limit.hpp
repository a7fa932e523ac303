// SubmissionLimit: keeps the number of pending operations on one stream below what the driver queues. Past about 1,024
// of them, the next call blocks inside the driver, where it may hold a lock that the trainer needs. Here the caller, a
// copy thread or the plan thread, sleeps until the oldest are done instead.
// Owner: Copier. Thread rule: thread-safe; callers are inside a Scope. Lifetime: the EventPool outlives it.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>

#include "base/result.hpp"
#include "device/cuda/objects.hpp"

namespace slackwater::cuda {

class SubmissionLimit {
 public:
  // At most (kMarks + 1) * kMarkEvery = 960 operations are pending, plus one per thread that is about to add one.
  static constexpr std::uint64_t kMarkEvery = 64;
  static constexpr std::size_t kMarks = 14;

  SubmissionLimit(EventPool& events, CUstream stream) : events_(events), stream_(stream) {}

  [[nodiscard]] CUstream stream() const { return stream_; }
  // Call it before each operation. The wait needs no lock and none of our threads: only the device has to go on.
  [[nodiscard]] Status admit() {
    std::shared_ptr<StreamEvent> oldest;
    {
      const std::lock_guard lock(mutex_);
      if (++since_mark_ < kMarkEvery) return {};
      since_mark_ = 1;  // the mark itself is an operation
      SW_ASSIGN(marks_.emplace_back(), StreamEvent::record(events_, std::array{stream_}));
      if (marks_.size() <= kMarks) return {};
      oldest = std::move(marks_.front());
      marks_.pop_front();
    }
    return oldest->wait();
  }

 private:
  EventPool& events_;
  const CUstream stream_;
  std::mutex mutex_;
  std::uint64_t since_mark_ = 0;                    // guarded by mutex_: operations after the last mark
  std::deque<std::shared_ptr<StreamEvent>> marks_;  // guarded by mutex_: the last ones
};

}  // namespace slackwater::cuda
