#include "stage/stager.hpp"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <stop_token>
#include <system_error>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "base/thread.hpp"
#include "stage/landing.hpp"
#include "stage/window_copy.hpp"

namespace slackwater {
namespace {

Error closed_error() {
  return {ErrorKind::kClosed, "the engine was closed before this snapshot had been staged", {}, 0, false};
}

// A snapshot on its way through the stager. Its members are guarded by Impl::mutex_, except where said.
struct Staging {
  explicit Staging(std::shared_ptr<StageJob> staged)
      : job(std::move(staged)), copied(std::make_unique<std::atomic<std::uint64_t>[]>(job->sources.size())) {}

  const std::shared_ptr<StageJob> job;
  CopiedBytes copied;      // counted by all threads, not guarded
  std::uint32_t part = 0;  // the window handed out next
  std::uint64_t window = 0;
  bool queued = true;          // has windows left to hand out
  unsigned threads = 0;        // at work on it
  unsigned landing = 0;        // slabs whose copies a device has under way, and callbacks that must end before on_done
  std::optional<Error> error;  // the first one
  // Slabs that a device may still be writing to after an error: free again when the passages are over.
  std::vector<Lease> held_back;

  [[nodiscard]] bool over() const { return threads == 0 && !queued && landing == 0; }
};

}  // namespace

// Each copy thread takes its turn: it waits for a slab in the name of the front job, takes that job's next window and
// passes the turn on before it copies. So slabs are granted in stream order, while copies run side by side.
class Stager::Impl {
 public:
  Impl(Pool& pool, StagerOptions options) : pool_(pool), options_(options) {
    const unsigned count = std::max(1u, options_.copy_threads);
    threads_.reserve(count);
    try {
      for (unsigned i = 0; i < count; ++i) {
        threads_.push_back(start_thread(fmt::format("sw-copy-{}", i), [this](const std::stop_token&) { run(); }));
      }
    } catch (const std::system_error&) {
      if (threads_.empty()) throw;  // one is enough to go on with
    }
  }

  ~Impl() { stop(); }

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      for (const auto& job : std::vector(live_)) give_up(job, closed_error());
    }
    changed_.notify_all();
    threads_.clear();
    landing_.reset();
  }

  void enqueue(std::shared_ptr<StageJob> job) {
    if (Status accepted = accept(job); !accepted) {
      job->passages.clear();
      job->on_done(std::move(accepted));
      return;
    }
    changed_.notify_one();
  }

  void cancel(const std::shared_ptr<StageJob>& job, Error error) {
    {
      const std::lock_guard lock(mutex_);
      const auto found = std::ranges::find(live_, job, &Staging::job);
      if (found == live_.end()) return;
      give_up(*found, std::move(error));
    }
    changed_.notify_all();
  }

 private:
  using JobRef = std::shared_ptr<Staging>;

  [[nodiscard]] Status accept(const std::shared_ptr<StageJob>& job) {
    const std::lock_guard lock(mutex_);
    if (stopping_) return fail(closed_error());
    if (!job->passages.empty() && !landing_) {
      try {
        landing_ = std::make_unique<Landing>();
      } catch (const std::system_error& trouble) {
        return fail(ErrorKind::kOutOfMemory,
                    fmt::format("no thread could be started to wait for the device's copies ({}); raise the limit of "
                                "processes (ulimit -u)",
                                trouble.what()));
      }
    }
    live_.push_back(std::make_shared<Staging>(job));
    queue_.push_back(live_.back());
    return {};
  }

  // Needs mutex_. The first error stays; no further window is begun.
  void give_up(const JobRef& job, Error error) {
    if (!job->error) job->error = std::move(error);
    if (!std::exchange(job->queued, false)) return;
    std::erase(queue_, job);
    if (job->over()) ended_.push_back(job);
    slab_wait_.request_stop();  // whoever waits for a slab looks around again
  }

  void run() {
    WindowCopier copier;
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(
          lock, [&] { return !ended_.empty() || (!queue_.empty() && !turn_taken_) || (stopping_ && queue_.empty()); });
      if (!ended_.empty()) {
        const JobRef job = std::move(ended_.front());
        ended_.pop_front();
        finish(job, lock);
      } else if (!queue_.empty()) {
        stage_one(copier, lock);
      } else {
        return;
      }
    }
  }

  // Needs the lock; gives it up while it waits and while it copies.
  void stage_one(WindowCopier& copier, std::unique_lock<std::mutex>& lock) {
    const JobRef job = queue_.front();
    ++job->threads;
    Result<Lease> lease = wait_for_slab(lock);
    if (!lease && lease.error().kind != ErrorKind::kClosed) give_up(job, std::move(lease.error()));
    if (lease && !job->error) {
      FullSlab slab{.lease = std::move(*lease), .part = job->part, .offset = 0, .size_bytes = 0};
      const std::uint64_t window = std::exchange(job->window, job->window + 1);
      if (job->window == job->job->layout->parts[job->part].window_count(pool_.slab_bytes())) {
        job->window = 0;
        if (++job->part == job->job->layout->parts.size()) {
          job->queued = false;
          queue_.pop_front();
        }
      }
      lock.unlock();
      changed_.notify_one();
      const Status status = fill(job, std::move(slab), window, copier);
      lock.lock();
      if (!status) give_up(job, status.error());
    }
    --job->threads;
    if (job->threads == 0 && !job->queued) tell_queued(job, lock);
    if (job->over()) finish(job, lock);
  }

  // Needs the lock, and gives it up: every copy of the job has been made or queued.
  void tell_queued(const JobRef& job, std::unique_lock<std::mutex>& lock) {
    const StageJob& what = *job->job;
    if (what.passages.empty() || what.whole_fingerprint || job->error || !what.on_queued) return;
    ++job->landing;  // on_done waits until this is over
    lock.unlock();
    std::vector<DevicePoint> points;
    Status status;
    for (const DevicePassage& passage : what.passages) {
      auto event = passage.passage->mark();
      if (!event) {
        status = fail(std::move(event).error());
        break;
      }
      points.push_back({passage.device, std::move(*event)});
    }
    if (status) what.on_queued(std::move(points));
    lock.lock();
    --job->landing;
    if (!status) give_up(job, status.error());
  }

  [[nodiscard]] Result<Lease> wait_for_slab(std::unique_lock<std::mutex>& lock) {
    turn_taken_ = true;
    slab_wait_ = std::stop_source();
    const std::stop_token stop = slab_wait_.get_token();
    lock.unlock();
    Result<Lease> lease = pool_.acquire(options_.stall_timeout, stop);
    lock.lock();
    turn_taken_ = false;
    return lease;
  }

  [[nodiscard]] Status fill(const JobRef& job, FullSlab slab, std::uint64_t window, WindowCopier& copier) {
    const std::span<std::byte> memory = slab.lease.memory();
    slab.offset = window * memory.size();
    auto copied = copier.copy(*job->job, slab.part, window, memory, job->copied);
    if (!copied) {
      if (!job->job->passages.empty()) hold_back(job, std::move(slab));
      return fail(std::move(copied.error()));
    }
    slab.size_bytes = copied->size_bytes;
    if (copied->events.empty()) {
      job->job->on_slab(std::move(slab));
      return {};
    }
    {
      const std::lock_guard lock(mutex_);
      ++job->landing;
    }
    landing_->expect({.events = std::move(copied->events),
                      .landed = [this, job, slab = std::move(slab), looks = std::move(copied->looks)](
                                    Status status) mutable { land(job, std::move(slab), looks, std::move(status)); }});
    return {};
  }

  // On the landing thread: the copies into this slab are over.
  void land(const JobRef& job, FullSlab slab, const std::vector<std::uint32_t>& looks, Status status) {
    if (!status) hold_back(job, std::move(slab));
    for (const std::uint32_t tensor : looks) {
      if (!status) break;
      status = check_stood_still(*job->job, tensor);
    }
    if (status) job->job->on_slab(std::move(slab));
    std::unique_lock lock(mutex_);
    --job->landing;
    if (!status) give_up(job, std::move(status.error()));
    if (!job->over()) return;
    std::erase(ended_, job);  // where give_up() may just have put it
    finish(job, lock);
  }

  void hold_back(const JobRef& job, FullSlab slab) {
    const std::lock_guard lock(mutex_);
    job->held_back.push_back(std::move(slab.lease));
  }

  // Needs the lock and that nobody else works on the job; calls on_done without the lock.
  void finish(const JobRef& job, std::unique_lock<std::mutex>& lock) {
    std::erase(live_, job);
    lock.unlock();
    changed_.notify_all();
    job->job->passages.clear();  // waits for copies that are under way after an error
    job->held_back.clear();
    job->job->on_done(job->error ? Status(fail(*job->error)) : Status());
    lock.lock();
  }

  Pool& pool_;
  const StagerOptions options_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<JobRef> queue_;    // guarded by mutex_; with windows left to hand out
  std::deque<JobRef> ended_;    // guarded by mutex_; given up while nobody worked on them, on_done still to be called
  std::vector<JobRef> live_;    // guarded by mutex_; all whose on_done has not been called
  std::stop_source slab_wait_;  // guarded by mutex_; interrupts the thread that has the turn
  bool turn_taken_ = false;     // guarded by mutex_
  bool stopping_ = false;       // guarded by mutex_
  // Made with the first job that needs it, before any of its copies; then constant until stop().
  std::unique_ptr<Landing> landing_;
  std::vector<std::jthread> threads_;  // started last
};

Stager::Stager(Pool& pool, StagerOptions options) : impl_(std::make_unique<Impl>(pool, options)) {}
Stager::~Stager() = default;

void Stager::stop() { impl_->stop(); }
void Stager::enqueue(std::shared_ptr<StageJob> job) { impl_->enqueue(std::move(job)); }
void Stager::cancel(const std::shared_ptr<StageJob>& job, Error error) { impl_->cancel(job, std::move(error)); }

}  // namespace slackwater
