#include "os/thread_queue.hpp"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "base/thread.hpp"

namespace slackwater {
namespace {

Result<std::uint64_t> transfer(const IoRequest& request) {
  const std::span memory(request.data, request.size_bytes);
  if (request.op == IoOp::kRead) return request.file->read_at(memory, request.offset);
  SW_TRY(request.file->write_at(memory, request.offset));
  return request.size_bytes;
}

}  // namespace

struct ThreadQueue::Shared {
  std::mutex mutex;
  std::condition_variable work_or_stop;
  std::condition_variable done_or_woken;
  std::deque<IoRequest> waiting;  // guarded by mutex, like all below
  std::vector<IoCompletion> completed;
  bool woken = false;
  bool stopping = false;
  std::vector<std::jthread> workers;  // used by the owning thread only

  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      work_or_stop.wait(lock, [this] { return stopping || !waiting.empty(); });
      if (waiting.empty()) return;
      const IoRequest request = waiting.front();
      waiting.pop_front();
      lock.unlock();
      IoCompletion completion{request.tag, transfer(request)};
      lock.lock();
      completed.push_back(std::move(completion));
      done_or_woken.notify_one();
    }
  }
};

ThreadQueue::ThreadQueue(unsigned depth, std::string fallback_reason)
    : depth_(depth),
      fallback_reason_(std::move(fallback_reason)),
      shared_(std::make_unique<Shared>()),
      guard_([this] { disowned_ = true; }) {}

Result<std::unique_ptr<IoQueue>> ThreadQueue::create(const IoQueueOptions& options, std::string fallback_reason,
                                                     unsigned workers) {
  std::unique_ptr<ThreadQueue> queue(new ThreadQueue(options.depth, std::move(fallback_reason)));
  Shared& shared = *queue->shared_;
  try {
    for (unsigned number = 0; number < std::min(options.depth, workers); ++number) {
      shared.workers.push_back(
          start_thread(fmt::format("sw-io-{}", number), [&shared](std::stop_token) { shared.run(); }));
    }
  } catch (const std::system_error& error) {
    if (shared.workers.empty()) {
      return fail(Error{.kind = ErrorKind::kOutOfMemory,
                        .message = "cannot start a thread for I/O; raise the limit on processes (ulimit -u)",
                        .sys_errno = error.code().value(),
                        .retryable = true});
    }
  }
  return queue;
}

ThreadQueue::~ThreadQueue() {
  if (disowned_) {
    // The workers exist only in the parent. Joining them, or destroying what they wait on, would block forever.
    (void)shared_.release();
    return;
  }
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->stopping = true;
  }
  shared_->work_or_stop.notify_all();
  shared_->workers.clear();  // joins; a worker ends when no request is waiting
}

Status ThreadQueue::register_buffer(int /*index*/, std::span<std::byte> /*memory*/) {
  return fail(ErrorKind::kUnsupported, "the I/O queue of threads has no registered buffers");
}

Status ThreadQueue::submit(const IoRequest& request) {
  if (disowned_) return closed_by_fork();
  if (in_flight_ >= depth_) return fail(ErrorKind::kInternal, "the I/O queue is full");
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->waiting.push_back(request);
  }
  shared_->work_or_stop.notify_one();
  ++in_flight_;
  return {};
}

Status ThreadQueue::wait(std::vector<IoCompletion>& completions, std::optional<Duration> timeout) {
  if (disowned_) return closed_by_fork();
  std::unique_lock lock(shared_->mutex);
  const auto ready = [this] { return shared_->woken || !shared_->completed.empty(); };
  if (timeout) {
    // A longer timeout would overflow when added to the current time.
    shared_->done_or_woken.wait_for(lock, std::min<Duration>(*timeout, std::chrono::hours(24 * 365)), ready);
  } else {
    shared_->done_or_woken.wait(lock, ready);
  }
  shared_->woken = false;
  in_flight_ -= static_cast<unsigned>(shared_->completed.size());
  completions.insert(completions.end(), std::make_move_iterator(shared_->completed.begin()),
                     std::make_move_iterator(shared_->completed.end()));
  shared_->completed.clear();
  return {};
}

void ThreadQueue::wake() {
  if (disowned_) return;
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->woken = true;
  }
  shared_->done_or_woken.notify_one();
}

}  // namespace slackwater
