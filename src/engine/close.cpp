// close(): ends an engine while other calls may be running. docs/threading.md has the rule: steps that save() accepted
// before are committed or named, later calls return kClosed, and a call that is still inside keeps what it uses.
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "base/thread.hpp"
#include "engine/engine_impl.hpp"
#include "engine/skip_thread.hpp"

namespace slackwater {
namespace {

constexpr std::chrono::milliseconds kCloseGrace{2000};  // for writes in flight, once close() has run out of time

}  // namespace

Status Engine::Impl::close(std::optional<std::chrono::milliseconds> timeout) {
  if (disowned()) return {};
  if (!shared_.jobs.begin_close()) return wait_closed(timeout);
  Status status = close_once(timeout);
  // The last access to this object: the destructor may be waiting for it.
  std::lock_guard lock(close_mutex_);
  close_ended_ = true;
  close_changed_.notify_all();
  return status;
}

// Another call closes, or has closed, and reports the errors.
Status Engine::Impl::wait_closed(std::optional<std::chrono::milliseconds> timeout) {
  std::unique_lock lock(close_mutex_);
  const auto ended = [&] { return close_ended_; };
  if (!timeout) {
    close_changed_.wait(lock, ended);
  } else if (!close_changed_.wait_for(lock, *timeout, ended)) {
    return fail(Error{.kind = ErrorKind::kTimeout,
                      .message = "another close() is under way and has not ended yet",
                      .path = options_.path,
                      .retryable = true});
  }
  return {};
}

Status Engine::Impl::close_once(std::optional<std::chrono::milliseconds> timeout) {
  const auto deadline = timeout ? std::optional(EngineStatus::Instant::now() + *timeout) : std::nullopt;
  const Status idle = shared_.jobs.wait_idle(Level::kCommitted, timeout);
  const Status copied = shared_.promotions.wait_idle(deadline, options_.copy_timeout);
  const bool cleaned = shared_.cleaner.wait_idle(deadline);
  const bool flushed = !shared_.memory || shared_.memory->flush().wait(deadline);
  // They read from lower tiers, perhaps from one that does not respond.
  const bool restorer_ended = restorer_.request_stop();
  // First the jobs in flight, then the failures. So a step that sw-commit gives up in between is in both, not in
  // neither.
  const auto left = shared_.jobs.snapshots();                           // close() has begun, so no save() adds any more
  BackgroundErrors failed = std::exchange(*shared_.errors.lock(), {});  // taken before jobs are given up
  std::vector<std::shared_ptr<Snapshot::Impl>> unfinished;
  for (const auto& snapshot : left) {
    if (auto error = snapshot->error()) {  // sw-commit may not have reported it yet
      error->message = fmt::format("step {} was not checkpointed: {}", snapshot->step(), error->message);
      failed.add(*error, snapshot->step());
    } else {
      unfinished.push_back(snapshot);
    }
  }

  bool ended = true;
  if (left.empty() && copied && cleaned && flushed && restorer_ended && !(timeout && shared_.versions.busy())) {
    shut_down(true);
  } else {
    // Something is still under way, if only the removal of a failed snapshot. close() does not wait for it any longer.
    ended = shut_down_within(kCloseGrace);
    if (!ended)
      shared_.log.error("the storage at {} does not respond; threads that wait for it keep running after close()",
                        copied && restorer_ended ? options_.path : "a lower tier of " + options_.path);
  }

  // Checked only now: a decision that had begun is not interrupted, and may have ended in a commit.
  std::erase_if(unfinished, [](const auto& snapshot) { return snapshot->progress().level == Level::kCommitted; });
  // With steps that are not on disk, the keeper takes the end of this trainer for a crash: it flushes what it has.
  Status kept;
  if (shared_.memory && ended) kept = shared_.memory->close(unfinished.empty() && !failed.first());
  if (unfinished.empty()) {
    if (failed.first()) return fail(failed.in_words());
    if (!ended && !idle) return idle;
    return kept ? copied : kept;
  }
  std::vector<std::uint64_t> steps;
  for (const auto& snapshot : unfinished) steps.push_back(snapshot->step());
  std::string message = fmt::format("closed before everything was committed; given up: {}", named_steps(steps));
  if (failed.first()) message += fmt::format("; before that: {}", failed.in_words().message);
  return fail(ErrorKind::kTimeout, std::move(message), options_.path);
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
    shared_.log.error("could not start the thread that shuts down the engine: {}", trouble.what());
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
    for (const auto& job : shared_.jobs.jobs()) {
      job->snapshot->fail(closing);
      Pipeline::give_up(*job, closing);
    }
  }
  for (const Tier& tier : shared_.tiers) {  // nobody waits for a slow network from here on
    tier.fs().stop_transfers();
    tier.reader().stop_transfers();
  }
  // In the order of the pipeline, so that a thread that still runs finds the one it hands its work to.
  if (shared_.turns) shared_.turns->stop();
  if (shared_.memory) shared_.memory->flush().stop();  // sw-plan may be waiting for it
  static_cast<void>(restorer_.request_stop());
  planner_.stop();
  if (!in_time) shared_.jobs.drop_unplanned();  // jobs that sw-plan never took
  std::shared_ptr<Pipeline> pipeline;           // released last, and after a restore() that reads into its pool
  {
    const auto slot = shared_.pipeline.lock();
    slot->last_stats = slot->stats();
    slot->stopped = true;
    pipeline = slot->pipeline;
  }
  if (pipeline) pipeline->stop();  // every save job is drained now
  committer_.stop();
  shared_.promotions.stop();
  shared_.cleaner.stop();
  shared_.pipeline.lock()->pipeline.reset();
  restorer_.stop();  // last: a probe or a repair may hang in a directory that does not respond
  restorer_.leave_ranks();
  shared_.versions.close();
}

}  // namespace slackwater
