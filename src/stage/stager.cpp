#include "stage/stager.hpp"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <system_error>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "base/thread.hpp"
#include "stage/chunk_copier.hpp"
#include "stage/copy_budget.hpp"
#include "stage/copy_waiter.hpp"

namespace slackwater {
namespace {

Error closed_error() {
  return {ErrorKind::kClosed, "the engine was closed before this snapshot had been staged", {}, 0, false};
}

// A snapshot on its way through the stager. Guarded by Impl::mutex_, except `job` and `copied`.
struct Staging {
  explicit Staging(std::shared_ptr<StageJob> staged)
      : job(std::move(staged)), copied(std::make_unique<std::atomic<std::uint64_t>[]>(job->sources.size())) {}

  const std::shared_ptr<StageJob> job;
  CopiedBytes copied;           // all copy threads add to it
  std::uint32_t next_part = 0;  // the chunk handed out next
  std::uint64_t next_chunk = 0;
  bool queued = true;           // has chunks left to hand out
  bool all_at_once = false;     // the fence was called: no limit on outstanding copies
  unsigned threads = 0;         // at work on it
  unsigned waiting_copies = 0;  // slabs that a device still copies into, and callbacks that must end before on_done
  std::optional<Error> error;   // the first one
  // Slabs that a device may still be writing to after an error. They are free again once the device copies are over.
  std::vector<Lease> held_back;

  [[nodiscard]] bool over() const { return threads == 0 && !queued && waiting_copies == 0; }
};

}  // namespace

// The copy threads take turns. The thread whose turn it is waits for a slab for the front snapshot, takes that
// snapshot's next chunk, and passes the turn on before it copies. So slabs are granted in file order, while copies run
// in parallel.
// Before that, it waits until the chunk's device copies are within the limit (CopyBudget). This wait cannot deadlock:
// the copies that are outstanding are on a device, which finishes them without any of our threads, and the copy waiter
// then takes them off the count. While a thread waits, it holds no lock and no slab and has nothing counted. A chunk
// that finds nothing outstanding is always queued.
class Stager::Impl {
 public:
  Impl(Pool& pool, StagerOptions options)
      : pool_(pool), options_(options), budget_(options.copies_ahead_bytes, options.copies_ahead_operations) {
    const unsigned count = std::max(1u, options_.copy_threads);
    threads_.reserve(count);
    try {
      for (unsigned i = 0; i < count; ++i) {
        threads_.push_back(start_thread(fmt::format("sw-copy-{}", i), [this](const std::stop_token&) { run(); }));
      }
    } catch (const std::system_error&) {
      if (threads_.empty()) throw;  // fewer threads are slower; none would hang every snapshot
    }
  }

  ~Impl() { stop(); }

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      for (const StagingRef& staging : live_) give_up(staging, closed_error());
    }
    changed_.notify_all();
    // The copy threads first: they finish what was given up and still hand copies to the waiter. Then the waiter, whose
    // destructor waits for those copies and so calls the last on_done.
    threads_.clear();
    copy_waiter_.reset();
  }

  [[nodiscard]] Status start_copy_waiter() {
    const std::lock_guard lock(mutex_);
    if (stopping_) return fail(closed_error());
    return ensure_copy_waiter();
  }

  void enqueue(std::shared_ptr<StageJob> job) {
    if (Status accepted = accept(job); !accepted) {
      job->device_copies.clear();  // as in finish(): on_done may release what the copies read
      job->on_done(std::move(accepted));
      return;
    }
    changed_.notify_one();
  }

  void queue_all(const std::shared_ptr<StageJob>& job) {
    {
      const std::lock_guard lock(mutex_);
      const auto last = std::ranges::find(queue_, job, &Staging::job);
      if (last == queue_.end()) return;
      // Those before it too, because only the front job gets slabs.
      std::for_each(queue_.begin(), last + 1, [](const StagingRef& staging) {
        staging->all_at_once = true;
        for (const CopiesOfDevice& each : staging->job->device_copies) each.copies->at_once();
      });
    }
    room_.notify_all();
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
  using StagingRef = std::shared_ptr<Staging>;

  [[nodiscard]] Status accept(const std::shared_ptr<StageJob>& job) {
    const std::lock_guard lock(mutex_);
    if (stopping_) return fail(closed_error());
    // It must exist before any of the job's copies is queued. Then nothing keeps a queued copy from being waited for.
    if (!job->device_copies.empty()) SW_TRY(ensure_copy_waiter());
    // Without a limit there is no telling how many turns would be queued, and a fence has to wait for all of them.
    if (!budget_.limited()) std::ranges::for_each(job->device_copies, [](const auto& each) { each.copies->at_once(); });
    live_.push_back(std::make_shared<Staging>(job));
    queue_.push_back(live_.back());
    return {};
  }

  // Needs mutex_. Most runs have no device, so the waiter's thread is started only when a job needs it.
  [[nodiscard]] Status ensure_copy_waiter() {
    if (copy_waiter_) return {};
    try {
      copy_waiter_ = std::make_unique<CopyWaiter>();
    } catch (const std::system_error& trouble) {
      return fail(ErrorKind::kOutOfMemory,
                  fmt::format("cannot start a thread to wait for the device's copies ({}); raise the limit on "
                              "processes (ulimit -u)",
                              trouble.what()));
    }
    return {};
  }

  // Needs mutex_. Keeps the first error, which is the cause of the others, and begins no further chunk.
  void give_up(const StagingRef& staging, Error error) {
    if (!staging->error) staging->error = std::move(error);
    if (!std::exchange(staging->queued, false)) return;
    std::erase(queue_, staging);
    // If a thread or a device is still at work on it, whichever finishes last calls finish(). Otherwise nobody would,
    // so a copy thread has to. The caller must not do it here: it may be the trainer, inside cancel().
    if (staging->over()) ended_.push_back(staging);
    // The thread that has the turn may be waiting for a slab for this snapshot, and the pool may never free one.
    slab_wait_.request_stop();
    room_.notify_all();  // or for fewer outstanding copies on a device
  }

  // A copy thread.
  void run() {
    ChunkCopier copier;
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(
          lock, [&] { return !ended_.empty() || (!queue_.empty() && !turn_taken_) || (stopping_ && queue_.empty()); });
      if (!ended_.empty()) {
        const StagingRef staging = std::move(ended_.front());
        ended_.pop_front();
        finish(staging, lock);
      } else if (!queue_.empty()) {
        stage_chunk(copier, lock);
      } else {
        return;
      }
    }
  }

  // Stages the next chunk of the front snapshot. Needs the lock; releases it while it waits and while it copies.
  void stage_chunk(ChunkCopier& copier, std::unique_lock<std::mutex>& lock) {
    // Counted before the wait: a snapshot that is cancelled during it must not be finished under this thread.
    const StagingRef staging = queue_.front();
    ++staging->threads;

    // First the slab, then the chunk. If the snapshot is given up during the wait, no chunk has been taken. kClosed
    // only means that the wait was interrupted; whoever did that has set the error.
    turn_taken_ = true;
    std::vector<CopyCost> costs = take_room(staging, copier, lock);
    Result<Lease> lease = staging->error ? fail(closed_error()) : wait_for_slab(lock);
    turn_taken_ = false;
    if (!lease && lease.error().kind != ErrorKind::kClosed) give_up(staging, std::move(lease.error()));
    if (lease && !staging->error) {
      FullSlab slab{.lease = std::move(*lease), .part = staging->next_part, .offset = 0, .size_bytes = 0};
      const std::uint64_t chunk = staging->next_chunk++;
      if (staging->next_chunk == staging->job->layout->parts[staging->next_part].chunk_count(pool_.slab_bytes())) {
        staging->next_chunk = 0;
        if (++staging->next_part == staging->job->layout->parts.size()) {
          // The next snapshot may have slabs from here on: this one needs no more, so it cannot be starved.
          staging->queued = false;
          queue_.pop_front();
        }
      }
      // The chunk is this thread's now. Pass the turn on, so that another thread waits for its slab during the copy.
      lock.unlock();
      changed_.notify_one();
      const Status status = fill(staging, std::move(slab), chunk, copier, std::move(costs));
      lock.lock();
      if (!status) give_up(staging, status.error());
    } else {
      give_back_room(costs);
    }
    --staging->threads;
    // Only the last thread can know that every copy has been queued: the others may still be queueing theirs, and a
    // fence that opened now would let the update overtake them.
    if (staging->threads == 0 && !staging->queued) tell_queued(staging, lock);
    if (staging->over()) finish(staging, lock);
  }

  // Every copy of the snapshot has been made or queued: on_queued gets the point behind them on each device. Needs the
  // lock; releases it while it asks the devices and calls on_queued.
  void tell_queued(const StagingRef& staging, std::unique_lock<std::mutex>& lock) {
    const StageJob& job = *staging->job;
    if (job.device_copies.empty() || job.whole_fingerprint || staging->error || !job.on_queued) return;
    ++staging->waiting_copies;  // keeps on_done from overtaking on_queued
    lock.unlock();
    std::vector<DevicePoint> points;
    Status status;
    for (const CopiesOfDevice& each : job.device_copies) {
      auto event = each.copies->record_event();
      if (!event) {
        status = fail(std::move(event).error());
        break;
      }
      points.push_back({each.device, std::move(*event)});
      // The early copies run on a stream of the trainer. The fence may be for another one.
      if (each.early_filled != nullptr) points.push_back({each.device, each.early_filled});
    }
    // All points or none: with one missing, the update could run before that device's copies.
    if (status) job.on_queued(std::move(points));
    lock.lock();
    --staging->waiting_copies;
    if (!status) give_up(staging, status.error());
  }

  // Waits until the device copies of the snapshot's next chunk are within the limit, and counts them. Ends at once if
  // the snapshot is given up or its fence is called. Needs the lock and the turn; releases the lock while it waits.
  [[nodiscard]] std::vector<CopyCost> take_room(const StagingRef& staging, ChunkCopier& copier,
                                                std::unique_lock<std::mutex>& lock) {
    if (!budget_.limited() || staging->job->device_copies.empty()) return {};
    const std::uint32_t part = staging->next_part;  // only the thread with the turn changes them
    const std::uint64_t chunk = staging->next_chunk;
    lock.unlock();
    std::vector<CopyCost> costs = copier.costs(*staging->job, part, chunk, pool_.slab_bytes());
    lock.lock();
    room_.wait(lock, [&] { return staging->error || staging->all_at_once || budget_.has_room(costs); });
    budget_.take(costs);  // also without a limit: later snapshots count it
    return costs;
  }

  // Needs the lock.
  void give_back_room(std::span<const CopyCost> costs) {
    budget_.give_back(costs);
    if (!costs.empty()) room_.notify_all();
  }

  // Needs the lock; releases it while it waits. Each wait gets a stop source of its own, because one that has been
  // triggered cannot be reset.
  [[nodiscard]] Result<Lease> wait_for_slab(std::unique_lock<std::mutex>& lock) {
    slab_wait_ = std::stop_source();
    const std::stop_token stop = slab_wait_.get_token();
    lock.unlock();
    Result<Lease> lease = pool_.acquire(options_.stall_timeout, stop);
    lock.lock();
    return lease;
  }

  [[nodiscard]] Status fill(const StagingRef& staging, FullSlab slab, std::uint64_t chunk, ChunkCopier& copier,
                            std::vector<CopyCost> costs) {
    const std::span<std::byte> memory = slab.lease.memory();
    slab.offset = chunk * memory.size();
    if (!staging->job->device_copies.empty()) ensure_pinned(staging, slab.lease);
    auto copied = copier.copy(*staging->job, slab.part, chunk, memory, staging->copied);
    if (!copied) {
      // Some copies into the slab may have been queued before the error. The slab must not reach another snapshot while
      // they run.
      if (!staging->job->device_copies.empty()) hold_back(staging, std::move(slab));
      const std::lock_guard lock(mutex_);
      give_back_room(costs);  // nothing more of this snapshot is queued
      return fail(std::move(copied.error()));
    }
    slab.size_bytes = copied->size_bytes;
    // Host memory only: the slab is full now.
    if (copied->events.empty()) {
      staging->job->on_slab(std::move(slab));
      return {};
    }
    // Counted before the waiter knows of it: otherwise the copies could arrive first and the count fall below zero.
    {
      const std::lock_guard lock(mutex_);
      ++staging->waiting_copies;
    }
    copy_waiter_->expect(
        {.events = std::move(copied->events),
         .on_copied = [this, staging, slab = std::move(slab), late = std::move(copied->late),
                       to_check = std::move(copied->to_check), costs = std::move(costs)](Status status) mutable {
           if (status) copy_late(late);
           slab_copied(staging, std::move(slab), to_check, costs, std::move(status));
         }});
    return {};
  }

  // Slabs that were used before are pinned already, and they are leased first.
  void ensure_pinned(const StagingRef& staging, const Lease& lease) {
    if (!options_.needs_pin || !options_.needs_pin(lease.index())) return;
    {
      std::unique_lock lock(mutex_);
      room_.wait_until(lock, no_pin_before_, [&] { return staging->error || staging->all_at_once; });
      if (staging->error) return;
    }
    const auto began = std::chrono::steady_clock::now();
    options_.pin(lease.index(), lease.memory());
    const auto ended = std::chrono::steady_clock::now();
    const std::lock_guard lock(mutex_);
    no_pin_before_ = ended + options_.pin_pauses * (ended - began);
  }

  // On the copy waiter's thread: the copies into this slab are over.
  void slab_copied(const StagingRef& staging, FullSlab slab, const std::vector<std::uint32_t>& to_check,
                   std::span<const CopyCost> costs, Status status) {
    // First, so that the next copy is queued while this slab is looked at.
    {
      const std::lock_guard lock(mutex_);
      give_back_room(costs);
    }
    // A device that reported an error may have other copies into this slab still running.
    if (!status) hold_back(staging, std::move(slab));
    // The second samples have arrived with the slab. If they show that a tensor changed, the snapshot fails, and the
    // slab goes back unwritten.
    if (status) status = check_all_stood_still(*staging->job, to_check);
    if (status) staging->job->on_slab(std::move(slab));
    std::unique_lock lock(mutex_);
    --staging->waiting_copies;
    if (!status) give_up(staging, std::move(status.error()));
    if (!staging->over()) return;
    std::erase(ended_, staging);  // give_up() may just have put it there; it must be finished once
    finish(staging, lock);
  }

  void hold_back(const StagingRef& staging, FullSlab slab) {
    const std::lock_guard lock(mutex_);
    staging->held_back.push_back(std::move(slab.lease));
  }

  // Needs the lock, and that nobody else works on the snapshot. Releases the lock for on_done, which may call back.
  void finish(const StagingRef& staging, std::unique_lock<std::mutex>& lock) {
    std::erase(live_, staging);
    lock.unlock();
    changed_.notify_all();
    // In this order: destroying the device copies waits for those still running after an error. Only then may their
    // slabs go back to the pool, and only then may on_done let the trainer change the tensors.
    staging->job->device_copies.clear();
    staging->held_back.clear();
    staging->job->on_done(staging->error ? Status(fail(*staging->error)) : Status());
    lock.lock();
  }

  Pool& pool_;
  const StagerOptions options_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::condition_variable room_;  // for the thread that waits until fewer device copies are outstanding
  CopyBudget budget_;             // guarded by mutex_
  std::deque<StagingRef> queue_;  // guarded by mutex_; those with chunks left to hand out
  std::deque<StagingRef> ended_;  // guarded by mutex_; given up while nobody worked on them, on_done still to be called
  std::vector<StagingRef> live_;  // guarded by mutex_; all whose on_done has not been called
  std::stop_source slab_wait_;    // guarded by mutex_; interrupts the thread that waits for a slab
  std::chrono::steady_clock::time_point no_pin_before_;  // guarded by mutex_
  bool turn_taken_ = false;  // guarded by mutex_; a thread waits for a slab, or for fewer copies
  bool stopping_ = false;    // guarded by mutex_
  // Made for the first job that needs it, before any of its copies; constant from then until stop().
  std::unique_ptr<CopyWaiter> copy_waiter_;
  std::vector<std::jthread> threads_;  // started last
};

Stager::Stager(Pool& pool, StagerOptions options) : impl_(std::make_unique<Impl>(pool, options)) {}
Stager::~Stager() = default;

void Stager::stop() { impl_->stop(); }
Status Stager::start_copy_waiter() { return impl_->start_copy_waiter(); }
void Stager::enqueue(std::shared_ptr<StageJob> job) { impl_->enqueue(std::move(job)); }
void Stager::queue_all(const std::shared_ptr<StageJob>& job) { impl_->queue_all(job); }
void Stager::cancel(const std::shared_ptr<StageJob>& job, Error error) { impl_->cancel(job, std::move(error)); }

}  // namespace slackwater
