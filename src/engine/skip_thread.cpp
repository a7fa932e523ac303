#include "engine/skip_thread.hpp"

#include <exception>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "base/thread.hpp"

namespace slackwater {

void SkipThread::start() {
  if (thread_.joinable()) return;
  thread_ = start_thread("sw-turn", [this](const std::stop_token& stop) { loop(stop); });
}

void SkipThread::stop() {
  thread_.request_stop();
  if (thread_.joinable()) thread_.join();
}

bool SkipThread::take(std::uint64_t step) {
  std::lock_guard lock(mutex_);
  return turns_.take(step, shared_.clock->now());
}

void SkipThread::loop(const std::stop_token& stop) {
  constexpr std::chrono::seconds kPause{1};
  std::uint32_t attempt = 0;  // whose turns are counted
  std::uint64_t number = 0;   // of the next one
  bool told = false;
  while (true) {
    {
      std::unique_lock lock(mutex_);
      const auto due = [&] { return attempt_ && (!protocol_.is_rank_0() || owed_ > 0); };
      if (!changed_.wait(lock, stop, due) || stop.stop_requested()) return;
      if (std::exchange(attempt, *attempt_) != *attempt_) number = 0;
    }
    const Status turned = take_turn(attempt, number, stop);
    if (turned) {
      ++number;
      continue;
    }
    // kClosed: told to stop, or the attempt is over.
    if (turned.error().kind != ErrorKind::kClosed && !std::exchange(told, true)) {
      shared_.log.error(
          "the ranks cannot agree on the next step to save, and go on trying; until then none is saved: {}",
          turned.error().to_string());
    }
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, stop, kPause, [&] { return attempt_ && *attempt_ != attempt; });
  }
}

Status SkipThread::take_turn(std::uint32_t attempt, std::uint64_t number, const std::stop_token& stop) {
  try {
    SW_ASSIGN(const std::uint64_t from, next_turn(attempt, number, stop));
    use_turn(attempt, from);
    return {};
  } catch (const std::exception& trouble) {  // no memory: training goes on, and so does this thread
    return fail(ErrorKind::kOutOfMemory, trouble.what());
  }
}

// Rank 0 gives the turn, the others receive it.
Result<std::uint64_t> SkipThread::next_turn(std::uint32_t attempt, std::uint64_t number, const std::stop_token& stop) {
  std::uint64_t from = 0;
  std::stop_source wait;
  {
    std::lock_guard lock(mutex_);
    if (!attempt_ || *attempt_ != attempt) return fail(ErrorKind::kClosed, "the attempt is over");
    from = turns_.next(shared_.clock->now());
    wait_ = wait;
  }
  if (protocol_.is_rank_0()) {
    const Status told = protocol_.announce_turn(attempt, number, from);
    if (told) return from;
    if (told.error().kind != ErrorKind::kAlreadyExists) return fail(told.error());
  }
  const std::stop_callback on_stop(stop, [&] { wait.request_stop(); });
  return protocol_.await_turn(attempt, number, wait.get_token());
}

void SkipThread::use_turn(std::uint32_t attempt, std::uint64_t from) {
  std::optional<std::uint64_t> missed;
  {
    std::lock_guard lock(mutex_);
    if (!attempt_ || *attempt_ != attempt) return;
    if (protocol_.is_rank_0()) --owed_;
    missed = turns_.add(from);
  }
  if (!missed) return;
  // The others save this step and wait for this rank's vote. So it is added as a failed job, before any later step, and
  // sw-commit tells them at once. That also works while close() runs.
  shared_.jobs.add(failed_job(
      {.step = *missed, .save_began = EngineStatus::Instant::now(), .stall_timeout = options_.stall_timeout},
      {ErrorKind::kTimeout,
       fmt::format("rank 0 chose step {} to be saved (on_busy=skip), but this rank had already passed it; from now on "
                   "rank 0 chooses steps further ahead",
                   *missed),
       options_.path, 0, true},
      shared_.engine_status));
}

void SkipThread::end(bool committed) {
  std::lock_guard lock(mutex_);
  if (!committed) turns_.give_earlier();
  if (protocol_.is_rank_0()) ++owed_;
  changed_.notify_all();
}

void SkipThread::begin_attempt(std::uint32_t attempt) {
  std::lock_guard lock(mutex_);
  attempt_ = attempt;
  changed_.notify_all();
}

void SkipThread::begin_anew() {
  std::lock_guard lock(mutex_);
  attempt_.reset();
  turns_ = SkipSchedule(options_.in_flight);
  owed_ = 0;
  wait_.request_stop();
}

}  // namespace slackwater
