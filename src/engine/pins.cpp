// Pins. One for a step in flight is written before the decision to commit it, so that no clean-up and no crash finds the
// step committed and not pinned. What comes while that decision is made is written when it has been made, before anybody
// is told.
#include <algorithm>
#include <mutex>
#include <shared_mutex>

#include "base/result.hpp"
#include "engine/engine_impl.hpp"

namespace slackwater {

Status Engine::Impl::pin(std::uint64_t step) {
  SW_TRY(usable());
  if (auto pinned = pin_in_flight(step)) return *pinned;
  SW_ASSIGN(const VersionName name, find_version(step));
  const std::shared_lock alive(versions_alive_);  // not versions_mutex_: no commit waits for it
  SW_TRY(usable());  // still
  SW_TRY(versions_->pin(name));
  note_pinned(name);
  return {};
}

std::optional<Status> Engine::Impl::pin_in_flight(std::uint64_t step) {
  std::shared_ptr<Snapshot::Impl> snapshot;
  {
    std::lock_guard lock(mutex_);
    for (const auto& voyage : active_) {
      if (voyage->snapshot->step() != step || voyage->pin_settled) continue;
      voyage->to_pin = true;
      snapshot = voyage->snapshot;
    }
  }
  if (!snapshot) return std::nullopt;
  if (auto error = snapshot->error()) {
    error->message = fmt::format("step {} cannot be pinned, because it was not checkpointed: {}", step, error->message);
    return fail(std::move(*error));
  }
  return Status();
}

// On the commit thread, before this rank votes. What does not work here is tried once more by settle_pin().
void Engine::Impl::pin_ahead(Voyage& voyage) {
  {
    std::lock_guard lock(mutex_);
    if (!voyage.to_pin) return;
  }
  const Status pinned = with_room([&] {
    std::lock_guard lock(versions_mutex_);
    return versions_->pin_ahead(voyage.name);
  });
  voyage.pinned = pinned.has_value();
}

// On the commit thread, once it is known how the step ended. In the end pin() has to look for the version itself.
// Retention has not come to this version yet, on any rank: it is the newest until this rank votes for the next.
void Engine::Impl::settle_pin(Voyage& voyage, bool committed) {
  for (;;) {
    {
      std::lock_guard lock(mutex_);
      if (!committed || !voyage.to_pin || voyage.pinned) {
        voyage.pin_settled = true;
        return;
      }
    }
    const Status pinned = with_room([&] {
      std::lock_guard lock(versions_mutex_);
      return versions_->pin(voyage.name);
    });
    voyage.pinned = true;  // or never will be: it is not tried for ever
    if (pinned) {
      note_pinned(voyage.name);
      continue;
    }
    Error error = pinned.error();
    error.message = fmt::format("step {} is committed, but could not be pinned, and goes when its time has come: {}",
                                voyage.name.step, error.message);
    log_.error("{}", error.to_string());
    note_error(error);
  }
}

void Engine::Impl::note_pinned(const VersionName& version) {
  std::lock_guard lock(mutex_);
  const auto pinned = std::ranges::find(counting_, version, name_of);
  if (pinned != counting_.end()) pinned->pinned = true;
}

}  // namespace slackwater
