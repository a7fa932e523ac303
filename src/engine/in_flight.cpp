#include "engine/in_flight.hpp"

#include <algorithm>
#include <utility>

#include "base/result.hpp"

namespace slackwater {

InFlight::InFlight(const Options& options, std::shared_ptr<EngineStatus> engine_status)
    : options_(options), engine_status_(std::move(engine_status)) {}

Status InFlight::usable() const {
  if (engine_status_->is_disowned()) return fail(disowned_error());
  std::lock_guard lock(mutex_);
  if (closed_) return fail(closed_error());
  return {};
}

Error InFlight::closed_error() const {
  return Error{.kind = ErrorKind::kClosed,
               .message = "the checkpointer is closed; open it again to go on",
               .path = options_.path};
}

bool InFlight::unless_closed(const std::function<void()>& call) {
  std::lock_guard lock(mutex_);
  if (!closed_) call();
  return !closed_;
}

bool InFlight::accept(std::shared_ptr<SaveJob> job, const std::function<bool()>& prepare) {
  return unless_closed([&] {
    if (prepare()) push(std::move(job));
  });
}

void InFlight::add(std::shared_ptr<SaveJob> job) {
  std::lock_guard lock(mutex_);
  push(std::move(job));
}

void InFlight::push(std::shared_ptr<SaveJob> job) {
  active_.push_back(job);
  if (job->captured.devices.empty()) {
    job->sampled = true;
  } else {
    to_sample_.push_back(job);
  }
  to_plan_.push_back(std::move(job));
  changed_.notify_all();
}

bool InFlight::empty() const {
  std::lock_guard lock(mutex_);
  return active_.empty();
}

bool InFlight::full() const {
  std::lock_guard lock(mutex_);
  return active_.size() >= options_.in_flight;
}

bool InFlight::wait_for_room() {
  Lock lock(mutex_);
  while (!closed_ && active_.size() >= options_.in_flight) {
    const auto deadline = options_.stall_timeout - engine_status_->still_for();
    if (deadline <= Instant::duration::zero()) return false;
    changed_.wait_for(lock, deadline);
  }
  return true;
}

std::shared_ptr<SaveJob> InFlight::next_to_sample(const std::stop_token& stop) {
  Lock lock(mutex_);
  if (!changed_.wait(lock, stop, [&] { return !to_sample_.empty(); }) || stop.stop_requested()) return nullptr;
  std::shared_ptr<SaveJob> job = std::move(to_sample_.front());
  to_sample_.pop_front();
  return job;
}

void InFlight::mark_sampled(SaveJob& job) {
  {
    std::lock_guard lock(mutex_);
    job.sampled = true;
  }
  changed_.notify_all();
}

bool InFlight::wait_sampled(const SaveJob& job, const std::stop_token& stop) {
  Lock lock(mutex_);
  return changed_.wait(lock, stop, [&] { return job.sampled.load(); });
}

std::shared_ptr<SaveJob> InFlight::next_to_plan(const std::stop_token& stop) {
  Lock lock(mutex_);
  if (!changed_.wait(lock, stop, [&] { return !to_plan_.empty(); })) return nullptr;
  std::shared_ptr<SaveJob> job = std::move(to_plan_.front());
  to_plan_.pop_front();
  return job;
}

void InFlight::mark_drained(SaveJob& job) {
  {
    std::lock_guard lock(mutex_);
    job.drained = true;
  }
  changed_.notify_all();
}

std::shared_ptr<SaveJob> InFlight::front(const std::stop_token& stop) {
  Lock lock(mutex_);
  return changed_.wait(lock, stop, [&] { return !active_.empty(); }) ? active_.front() : nullptr;
}

bool InFlight::wait_drained(const SaveJob& job, const std::stop_token& stop,
                            std::optional<std::chrono::milliseconds> pause) {
  Lock lock(mutex_);
  const auto drained = [&] { return job.drained.load(); };
  return pause ? changed_.wait_for(lock, stop, *pause, drained) : changed_.wait(lock, stop, drained);
}

void InFlight::pop_front() {
  {
    std::lock_guard lock(mutex_);
    active_.pop_front();
  }
  changed_.notify_all();
}

std::vector<std::shared_ptr<Snapshot::Impl>> InFlight::snapshots() const {
  std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Snapshot::Impl>> snapshots;
  for (const auto& job : active_) snapshots.push_back(job->snapshot);
  return snapshots;
}

std::shared_ptr<Snapshot::Impl> InFlight::request_pin(std::uint64_t step) {
  std::lock_guard lock(mutex_);
  std::shared_ptr<Snapshot::Impl> snapshot;
  for (const auto& job : active_) {
    const auto pin = job->pin.lock();
    if (job->snapshot->step() != step || pin->settled) continue;
    pin->wanted = true;
    snapshot = job->snapshot;
  }
  return snapshot;
}

Status InFlight::wait_idle(Level level, std::optional<std::chrono::milliseconds> timeout) {
  const auto deadline = Instant::now() + timeout.value_or(std::chrono::milliseconds(0));
  for (const auto& snapshot : snapshots()) {
    std::optional<std::chrono::milliseconds> left;
    if (timeout)
      left = std::max(std::chrono::milliseconds(0),
                      std::chrono::ceil<std::chrono::milliseconds>(deadline - Instant::now()));
    // The error of a snapshot is kept as a background error. Only a time-out ends the wait.
    if (auto status = snapshot->wait(level, left); !status && !snapshot->error()) return status;
  }
  if (level == Level::kCommitted) {  // a failed snapshot is in flight until sw-commit has removed its files
    Lock lock(mutex_);
    const auto idle = [&] { return active_.empty(); };
    if (!timeout)
      changed_.wait(lock, idle);
    else if (!changed_.wait_until(lock, deadline, idle))
      return fail(ErrorKind::kTimeout, "the last snapshots have ended, but sw-commit did not finish with them in time",
                  options_.path);
  }
  return {};
}

bool InFlight::begin_close() {
  std::lock_guard lock(mutex_);
  if (closed_) return false;
  closed_ = true;
  changed_.notify_all();  // a save() that waits for room
  return true;
}

std::vector<std::shared_ptr<SaveJob>> InFlight::jobs() const {
  std::lock_guard lock(mutex_);
  return {active_.begin(), active_.end()};
}

void InFlight::drop_unplanned() {
  std::deque<std::shared_ptr<SaveJob>> dropped;
  {
    std::lock_guard lock(mutex_);
    to_sample_.clear();
    dropped.swap(to_plan_);
  }
  for (const auto& job : dropped) {
    job->device_copies.clear();  // waits for the samples: they still read the tensors
    job->snapshot->release_sources();
    mark_drained(*job);
  }
}

}  // namespace slackwater
