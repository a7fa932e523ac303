// Skipping steps where several ranks save together (on_busy=skip): rank 0 gives turns (commit/save_turns.hpp), all save
// the same steps, and nobody's trainer waits for word. docs/ranks.md has the protocol.
#include <exception>
#include <utility>

#include "base/result.hpp"
#include "engine/engine_impl.hpp"

namespace slackwater {

void Engine::Impl::turn_loop(std::stop_token stop) {
  constexpr std::chrono::seconds kPause{1};
  std::uint32_t attempt = 0;  // whose turns are counted
  std::uint64_t number = 0;   // of the next one
  bool told = false;
  while (true) {
    {
      Lock lock(mutex_);
      const auto due = [&] { return attempt_ && (!fleet_->leads() || turns_owed_ > 0); };
      if (!changed_.wait(lock, stop, due) || stop.stop_requested()) return;
      if (std::exchange(attempt, attempt_->number) != attempt_->number) number = 0;
    }
    const Status turned = take_turn(attempt, number, stop);
    if (turned) {
      ++number;
      continue;
    }
    // kClosed: told to stop, or the attempt is over.
    if (turned.error().kind != ErrorKind::kClosed && !std::exchange(told, true)) {
      log_.error("the ranks cannot agree on the next step to save, and go on trying; until then none is saved: {}",
                 turned.error().to_string());
    }
    Lock lock(mutex_);
    changed_.wait_for(lock, stop, kPause, [&] { return attempt_ && attempt_->number != attempt; });
  }
}

Status Engine::Impl::take_turn(std::uint32_t attempt, std::uint64_t number, const std::stop_token& stop) {
  try {
    SW_ASSIGN(const std::uint64_t from, next_turn(attempt, number, stop));
    use_turn(attempt, from);
    return {};
  } catch (const std::exception& trouble) {  // no memory: training goes on, and so does this thread
    return fail(ErrorKind::kOutOfMemory, trouble.what());
  }
}

// Rank 0 makes it, the others hear of it.
Result<std::uint64_t> Engine::Impl::next_turn(std::uint32_t attempt, std::uint64_t number,
                                              const std::stop_token& stop) {
  std::uint64_t from = 0;
  std::stop_source wait;
  {
    std::lock_guard lock(mutex_);
    if (!attempt_ || attempt_->number != attempt) return fail(ErrorKind::kClosed, "the attempt is over");
    from = turns_->next(clock_->now());
    turn_wait_ = wait;
  }
  if (fleet_->leads()) {
    const Status told = fleet_->announce_turn(attempt, number, from);
    if (told) return from;
    if (told.error().kind != ErrorKind::kAlreadyExists) return fail(told.error());
  }
  const std::stop_callback on_stop(stop, [&] { wait.request_stop(); });
  return fleet_->await_turn(attempt, number, wait.get_token());
}

void Engine::Impl::use_turn(std::uint32_t attempt, std::uint64_t from) {
  std::optional<std::uint64_t> missed;
  {
    std::lock_guard lock(mutex_);
    if (!attempt_ || attempt_->number != attempt) return;
    if (fleet_->leads()) --turns_owed_;
    missed = turns_->add(from);
  }
  if (!missed) return;
  // The others save it and wait for this rank's vote: tell them at once, and no later step is saved here before it.
  static_cast<void>(failed_snapshot(
      {.step = *missed, .save_began = Instant::now(), .stall_timeout = options_.stall_timeout},
      {ErrorKind::kTimeout,
       fmt::format("word that step {} is to be saved came when it had passed (on_busy=skip); rank 0 says it earlier "
                   "from now on",
                   *missed),
       options_.path, 0, true},
      WhenClosed::kAccept));
}

void Engine::Impl::end_turn(bool committed) {
  if (!turns_) return;
  if (!committed) turns_->give_earlier();
  if (fleet_->leads()) ++turns_owed_;
  changed_.notify_all();
}

void Engine::Impl::begin_turns_anew() {
  if (!turns_) return;
  turns_.emplace(options_.in_flight);
  turns_owed_ = 0;
  turn_wait_.request_stop();
}

}  // namespace slackwater
