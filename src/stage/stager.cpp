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
  std::optional<Error> error;  // the first one
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
  }

  void enqueue(std::shared_ptr<StageJob> job) {
    auto staging = std::make_shared<Staging>(std::move(job));
    {
      const std::lock_guard lock(mutex_);
      live_.push_back(staging);
      queue_.push_back(std::move(staging));
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

  // Needs mutex_. The first error stays; no further window is begun.
  void give_up(const JobRef& job, Error error) {
    if (!job->error) job->error = std::move(error);
    if (!std::exchange(job->queued, false)) return;
    std::erase(queue_, job);
    if (job->threads == 0) ended_.push_back(job);
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
      const Status status = fill(*job, std::move(slab), window, copier);
      lock.lock();
      if (!status) give_up(job, status.error());
    }
    if (--job->threads == 0 && !job->queued) finish(job, lock);
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

  [[nodiscard]] Status fill(Staging& job, FullSlab slab, std::uint64_t window, WindowCopier& copier) const {
    const std::span<std::byte> memory = slab.lease.memory();
    slab.offset = window * memory.size();
    auto size = copier.copy(*job.job, slab.part, window, memory, job.copied);
    if (!size) return fail(std::move(size.error()));
    slab.size_bytes = *size;
    job.job->on_slab(std::move(slab));
    return {};
  }

  // Needs the lock and that nobody else works on the job; calls on_done without the lock.
  void finish(const JobRef& job, std::unique_lock<std::mutex>& lock) {
    std::erase(live_, job);
    lock.unlock();
    changed_.notify_all();
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
  std::vector<std::jthread> threads_;  // started last
};

Stager::Stager(Pool& pool, StagerOptions options) : impl_(std::make_unique<Impl>(pool, options)) {}
Stager::~Stager() = default;

void Stager::stop() { impl_->stop(); }
void Stager::enqueue(std::shared_ptr<StageJob> job) { impl_->enqueue(std::move(job)); }
void Stager::cancel(const std::shared_ptr<StageJob>& job, Error error) { impl_->cancel(job, std::move(error)); }

}  // namespace slackwater
