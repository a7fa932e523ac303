// close(): the end of an engine, beside whatever else is going on. The rule is in docs/threading.md:
// what save() accepted before is committed or named, what comes later answers kClosed, and nothing is pulled from under a
// call that is still inside.
#include <algorithm>
#include <system_error>
#include <utility>

#include "base/result.hpp"
#include "base/thread.hpp"
#include "engine/engine_impl.hpp"

namespace slackwater {
namespace {

constexpr std::chrono::milliseconds kCloseGrace{2000};  // for writes in flight, once close() has run out of time

constexpr std::size_t kNamedSteps = 32;  // in one message; the log names them all

std::string named_steps(const std::vector<std::uint64_t>& steps, std::uint64_t more = 0) {
  std::string text = fmt::format("{} {}", steps.size() == 1 ? "step" : "steps", fmt::join(steps, ", "));
  if (more > 0) text += fmt::format(" and {} more (see the log)", more);
  return text;
}

}  // namespace

void Engine::Impl::add_failure(std::optional<Unreported>& unreported, const Error& error,
                               std::optional<std::uint64_t> step) {
  if (!unreported) {
    unreported = Unreported{.first = error, .step = step};
  } else if (!step || unreported->step == step ||
             std::ranges::find(unreported->later, *step) != unreported->later.end()) {
    return;
  } else if (unreported->later.size() < kNamedSteps) {
    unreported->later.push_back(*step);
  } else {
    ++unreported->more;
  }
}

// Whoever reports one step must not leave the others unsaid.
Error Engine::Impl::Unreported::in_words() const {
  Error error = first;
  if (!later.empty()) error.message += fmt::format("; not checkpointed either: {}", named_steps(later, more));
  return error;
}

Status Engine::Impl::close(std::optional<std::chrono::milliseconds> timeout) {
  if (disowned()) return {};
  {
    Lock lock(mutex_);
    if (closed_) return wait_closed(lock, timeout);
    closed_ = true;
  }
  changed_.notify_all();  // a save() that waits for room
  Status status = close_once(timeout);
  // The last touch of this object: the destructor may be waiting for it.
  std::lock_guard lock(mutex_);
  close_ended_ = true;
  changed_.notify_all();
  return status;
}

// Somebody else closes, or has closed, and reports what there is to report.
Status Engine::Impl::wait_closed(Lock& lock, std::optional<std::chrono::milliseconds> timeout) {
  const auto ended = [&] { return close_ended_; };
  if (!timeout) {
    changed_.wait(lock, ended);
  } else if (!changed_.wait_for(lock, *timeout, ended)) {
    return fail(Error{.kind = ErrorKind::kTimeout,
                      .message = "another close() is under way and has not ended yet",
                      .path = options_.path,
                      .retryable = true});
  }
  return {};
}

Status Engine::Impl::close_once(std::optional<std::chrono::milliseconds> timeout) {
  const auto deadline = timeout ? std::optional(Instant::now() + *timeout) : std::nullopt;
  const Status idle = wait_idle(Level::kCommitted, timeout);
  const bool cleaned = !cleaner_ || cleaner_->wait_idle(deadline);
  // Those in flight first, then the failures: a step that the commit thread gives up in between is in both, not in neither.
  const auto left = in_flight();     // closed_ is set: no save() adds to them any more
  std::optional<Unreported> failed;  // while there was time
  {
    std::lock_guard lock(mutex_);
    failed = std::exchange(unreported_, std::nullopt);
  }
  std::vector<std::shared_ptr<Snapshot::Impl>> unfinished;
  for (const auto& snapshot : left) {
    if (auto error = snapshot->error()) {  // the commit thread may not have come to say so
      error->message = fmt::format("step {} was not checkpointed: {}", snapshot->step(), error->message);
      add_failure(failed, *error, snapshot->step());
    } else {
      unfinished.push_back(snapshot);
    }
  }

  bool ended = true;
  if (left.empty() && cleaned && !(timeout && version_store_is_busy())) {
    shut_down(true);
  } else {
    // Something is still under way, if only the clearing away of a snapshot that has ended: whatever it waits for, we do not.
    ended = shut_down_within(kCloseGrace);
    if (!ended)
      log_.error("the storage at {} does not respond; threads that wait for it keep running after close()",
                 options_.path);
  }

  // Asked only now: a decision that had begun goes its way, and may have ended well.
  std::erase_if(unfinished, [](const auto& snapshot) { return snapshot->progress().level == Level::kCommitted; });
  if (unfinished.empty()) {
    if (failed) return fail(failed->in_words());
    return ended ? Status() : idle;
  }
  std::vector<std::uint64_t> steps;
  for (const auto& snapshot : unfinished) steps.push_back(snapshot->step());
  std::string message = fmt::format("closed before everything was committed; given up: {}", named_steps(steps));
  if (failed) message += fmt::format("; before that: {}", failed->in_words().message);
  return fail(ErrorKind::kTimeout, std::move(message), options_.path);
}

bool Engine::Impl::version_store_is_busy() {
  const std::unique_lock lock(versions_mutex_, std::try_to_lock);
  const std::unique_lock alone(versions_alive_, std::try_to_lock);
  return !lock.owns_lock() || !alone.owns_lock();
}

bool Engine::Impl::shut_down_within(std::chrono::milliseconds grace) {
  struct Ended {
    std::mutex mutex;
    std::condition_variable changed;
    bool ended = false;
  };
  auto state = std::make_shared<Ended>();
  stuck_ = true;
  try {
    close_thread_ = start_thread("sw-close", [this, state](std::stop_token) {
      shut_down(false);
      {
        std::lock_guard lock(state->mutex);
        state->ended = true;
      }
      state->changed.notify_all();
    });
  } catch (const std::system_error& trouble) {
    log_.error("could not start the thread that shuts down the engine: {}", trouble.what());
    return false;
  }
  std::unique_lock lock(state->mutex);
  if (!state->changed.wait_for(lock, grace, [&] { return state->ended; })) return false;
  lock.unlock();
  close_thread_.join();
  stuck_ = false;
  return true;
}

void Engine::Impl::shut_down(bool in_time) {
  const Error closing{.kind = ErrorKind::kClosed,
                      .message = "the checkpointer was closed before this snapshot was committed",
                      .path = options_.path};
  if (!in_time) {
    std::vector<std::shared_ptr<Voyage>> voyages;
    {
      std::lock_guard lock(mutex_);
      voyages.assign(active_.begin(), active_.end());
    }
    for (const auto& voyage : voyages) {
      voyage->snapshot->fail(closing);
      give_up(voyage, closing);
    }
  }
  turn_thread_.request_stop();
  if (turn_thread_.joinable()) turn_thread_.join();
  plan_thread_.request_stop();
  if (plan_thread_.joinable()) plan_thread_.join();
  if (!in_time) {  // what the plan thread never saw
    std::lock_guard lock(mutex_);
    for (const auto& voyage : to_plan_) {
      voyage->snapshot->release_sources();
      voyage->arrived = true;
    }
    to_plan_.clear();
  }
  {
    EngineStats last = stats();
    std::lock_guard lock(mutex_);
    stats_ = std::move(last);
    pipeline_stopped_ = true;
  }
  if (pipeline_) pipeline_->stop();  // every voyage has arrived now
  commit_thread_.request_stop();
  if (commit_thread_.joinable()) commit_thread_.join();
  if (cleaner_) cleaner_->stop();
  std::shared_ptr<Pipeline> pipeline;  // goes outside the lock, and only after a restore() that reads into its pool
  bool leave = false;
  {
    std::lock_guard lock(mutex_);
    pipeline = std::move(pipeline_);
    leave = coordinator_ && restoring_ == 0;
    leave_to_restore_ = coordinator_ && restoring_ > 0;
  }
  if (leave) coordinator_->leave();
  std::lock_guard lock(versions_mutex_);
  std::lock_guard alone(versions_alive_);
  versions_.reset();
}

Status Engine::Impl::Restoring::begin() {
  if (engine_.disowned()) return fail(disowned_error());
  std::lock_guard lock(engine_.mutex_);
  if (engine_.closed_) return fail(engine_.closed_error());
  ++engine_.restoring_;
  began_ = true;
  return {};
}

Engine::Impl::Restoring::~Restoring() {
  if (!began_) return;
  bool leave = false;
  {
    std::lock_guard lock(engine_.mutex_);
    leave = --engine_.restoring_ == 0 && std::exchange(engine_.leave_to_restore_, false);
  }
  if (leave) engine_.coordinator_->leave();
}

}  // namespace slackwater
