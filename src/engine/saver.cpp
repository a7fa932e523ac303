#include "engine/saver.hpp"

#include <new>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/result.hpp"
#include "base/units.hpp"
#include "capture/at_once_policy.hpp"
#include "capture/pinned_tensors.hpp"
#include "engine/skip_thread.hpp"

namespace slackwater {
namespace {

using Instant = EngineStatus::Instant;

double seconds(std::chrono::nanoseconds duration) { return std::chrono::duration<double>(duration).count(); }

// Turns consecutive numbers into unrelated seeds, so that each save samples other places of the tensors.
std::uint64_t spread(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  return value ^ (value >> 31);
}

}  // namespace

Saver::Saver(EngineShared& shared, std::function<Status()> start_threads)
    : shared_(shared), start_threads_(std::move(start_threads)) {}

Result<std::optional<Snapshot>> Saver::save(std::uint64_t step, State state) {
  const auto began = Instant::now();
  // Misuse is an Error of this call, and nothing has changed.
  SW_TRY(jobs_.usable());
  const std::pair checked(state.structure, state.tensors.size());
  SW_TRY(check_state(state, state.structure && checked == checked_));
  checked_ = checked;
  if (!state.part) SW_TRY(check_step(step));
  if (!state.part && options_.path.empty())
    return fail(ErrorKind::kInvalidArgument, "no directory was given: set Options::path");

  Spec spec{.step = step,
            .save_began = began,
            .stall_timeout = options_.stall_timeout,
            .sealed_by_caller = state.sealed_by_caller,
            .tensor_count = state.tensors.size()};
  // Before this step can fail: the versions that were there stay live, whatever happens to it.
  if (!last_step_ && !state.part) shared_.live.lock()->adopt_all();
  if (jobs_.empty()) shared_.engine_status->note_progress();  // an idle engine has not stalled
  if (turns_ != nullptr) {
    // Jobs in flight do not matter here: all ranks save exactly the steps for which rank 0 gives a turn.
    if (!turns_->take(step)) {
      ++shared_.counts.skipped;
      return std::optional<Snapshot>();
    }
  } else if (options_.on_busy == OnBusy::kSkip && !state.never_skip && shared_.pipeline.lock()->busy_touching()) {
    ++shared_.counts.skipped;
    return std::optional<Snapshot>();
  } else if (jobs_.full()) {
    if (options_.on_busy == OnBusy::kSkip && !state.never_skip) {
      ++shared_.counts.skipped;
      return std::optional<Snapshot>();
    }
    const bool room = jobs_.wait_for_room();
    spec.busy_seconds = seconds(Instant::now() - began);
    SW_TRY(jobs_.usable());
    if (!room) {
      return accept_failed(
          spec, {.kind = ErrorKind::kTimeout,
                 .message = fmt::format("step {} was not captured: earlier snapshots have made no progress for {}",
                                        step, format_seconds(seconds(options_.stall_timeout))),
                 .path = options_.path,
                 .retryable = true});
    }
  }
  shared_.engine_status->note_progress();  // this snapshot has not stalled, however long an earlier one takes to sync

  // Until save() returns nobody changes the state, so capture here what cannot be captured later.
  auto taken = take(step, std::move(state));
  if (!taken) {
    Error error = std::move(taken).error();
    // Misuse is an Error of the call. Trouble with a device or with memory fails only this snapshot.
    if (error.kind != ErrorKind::kDevice && error.kind != ErrorKind::kOutOfMemory) {
      end_turn();
      return fail(std::move(error));
    }
    error.message = fmt::format("step {} was not captured: {}", step, error.message);
    return accept_failed(spec, error);
  }
  std::shared_ptr<SaveJob> job = std::move(*taken);
  spec.at_once_bytes = job->captured.at_once_size_bytes;
  spec.at_once_tensors = std::move(job->at_once_tensors);
  const auto snapshot = std::make_shared<Snapshot::Impl>(spec, shared_.engine_status);
  job->snapshot = snapshot;
  const bool needs_fence = job->captured.needs_fence;
  // Taken away from the job: the trainer may destroy its streams once save() has returned. What comes later has events.
  const std::vector<StreamRef> after = std::exchange(job->state.after, {});
  // Weak: the snapshot is shared with the user, and must not keep the captured tensors alive.
  snapshot->hooks().set_cancel([weak = std::weak_ptr(job)](const Error& error) {
    if (const auto self = weak.lock()) Pipeline::give_up(*self, error);
  });
  // The capture may have taken long, and close() may have run since. The step is accepted here: from now on close()
  // waits for it or names it.
  Status started;
  const bool is_part = job->state.part.has_value();
  const bool open = jobs_.accept(std::move(job), [&] {
    if (!is_part) last_step_ = step;  // parts go to any directory, in any order
    started = start_threads_();
    return started.has_value();
  });
  if (!open) return refuse();
  if (!started) return accept_failed(spec, started.error());
  if (needs_fence) static_cast<void>(snapshot->fence(after));  // the snapshot keeps the outcome
  snapshot->finish_save();
  return std::optional<Snapshot>(Snapshot(snapshot));
}

Status Saver::check_step(std::uint64_t step) const {
  if (last_step_ && step <= *last_step_) {
    return fail(
        ErrorKind::kInvalidArgument,
        fmt::format("step {} cannot be saved after step {}: steps must grow; to go back, restore(step=...) first", step,
                    *last_step_),
        options_.path);
  }
  if (last_step_) return {};
  // A new run must not replace checkpoints that it did not restore, perhaps by mistake.
  if (const auto newest = shared_.live.lock()->newest_step(); newest && *newest >= step) {
    return fail(ErrorKind::kInvalidArgument,
                fmt::format("step {} cannot be saved: the directory holds checkpoints up to step {} that this run did "
                            "not restore; call restore() first, or use another directory",
                            step, *newest),
                options_.path);
  }
  return {};
}

Result<std::shared_ptr<SaveJob>> Saver::take(std::uint64_t step, State state) {
  try {
    auto job = std::make_shared<SaveJob>();
    SW_TRY(wait_for_pinned(state, shared_.devices));  // before anything reads a tensor
    job->at_once_tensors = choose_at_once(state, shared_.engine_status->torn);
    replica_shares_.study(state);
    job->replicas = replica_shares_.list();
    if (shared_.protocol) {  // there are ranks to compare replicas with
      const auto compared = options_.paranoid ? std::nullopt : *shared_.replicas_compared.lock();
      job->compares_every_byte = compared != job->replicas;
      if (job->compares_every_byte) {
        SW_ASSIGN(job->replica_digests, digest_replicas(state, shared_.devices));
      }
      // Always: ranks learn of the last commit at different times, so others may not compare every byte at this step.
      if (job->replicas != 0) {
        SW_ASSIGN(job->replica_samples, replica_sampler_.sample(state, shared_.devices, step));
      }
    }
    // From here on the state has only what this rank writes.
    state.tensors = replica_shares_.take(std::move(state.tensors));
    if (job->replicas != 0) state.take_back = nullptr;  // they may be parts of those that were given
    const CaptureOptions capture_options{.seed = spread(++saves_), .whole_fingerprint = options_.paranoid};
    SW_ASSIGN(job->captured, capture(state, shared_.devices, capture_options));
    job->pin.lock()->wanted = state.pin;
    job->state = std::move(state);
    return job;
  } catch (const std::bad_alloc&) {
    return fail(Error{.kind = ErrorKind::kOutOfMemory,
                      .message = "no memory for the copies of volatile tensors",
                      .path = {},
                      .retryable = true});
  }
}

Result<std::optional<Snapshot>> Saver::accept_failed(const Spec& spec, const Error& error) {
  std::shared_ptr<SaveJob> job = failed_job(spec, error, shared_.engine_status);
  const auto snapshot = job->snapshot;
  bool under_way = false;
  const bool open = jobs_.accept(std::move(job), [&] {
    last_step_ = spec.step;
    // The other ranks wait for this step. So it takes the usual way, and sw-commit tells them.
    under_way = shared_.protocol && start_threads_();
    if (!under_way) shared_.errors.lock()->add(error, spec.step);  // under the lock, so that close() finds it
    return under_way;
  });
  if (!open) return refuse();
  if (!under_way) {
    ++shared_.counts.failed;
    end_turn();
    log_.error("{}", error.to_string());
  }
  return std::optional<Snapshot>(Snapshot(snapshot));
}

std::unexpected<Error> Saver::refuse() {
  end_turn();
  return fail(jobs_.closed_error());
}

void Saver::end_turn() {
  if (turns_ != nullptr) turns_->end(false);
}

}  // namespace slackwater
