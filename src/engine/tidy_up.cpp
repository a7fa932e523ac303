// Deletion: rank 0 alone deletes, on the cleaner's thread. What may go is said in commit/retention.hpp.
#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>
#include <set>
#include <thread>
#include <utility>

#include "engine/engine_impl.hpp"

namespace slackwater {
namespace {

// Space may come back later than its file goes: the kernel ends the writes of a killed process after the process itself, and
// some file systems free blocks with their next transaction. And for a rank that may not delete, rank 0 perhaps does.
constexpr std::chrono::milliseconds kRoomPause{200};
constexpr int kRoomPauses = 5;

}  // namespace

void Engine::Impl::clean_up(Need need) {
  std::uint32_t attempt = 0;
  {
    std::lock_guard lock(mutex_);
    if (!attempt_) return;  // nothing may be deleted yet
    attempt = attempt_->number;
    committed_meanwhile_.emplace();
  }
  std::optional<std::vector<VersionInfo>> left;
  try {
    auto cleaned = versions_->clean_up(retention_policy(), need);
    if (cleaned) {
      left = std::move(*cleaned);
    } else {
      log_.warn("old checkpoints could not be removed: {}", cleaned.error().to_string());
      note_error(cleaned.error());
      if (auto catalog = versions_->scan_cached()) left = catalog->counting();
      ask_to_sweep();
    }
  } catch (const std::exception& trouble) {
    log_.warn("old checkpoints could not be removed: {}", trouble.what());
    ask_to_sweep();
  }
  std::lock_guard lock(mutex_);
  if (left && attempt_ && attempt_->number == attempt) {
    std::set<VersionName> pinned;  // perhaps after `left` was listed; no pin is ever taken back
    for (const VersionInfo& version : counting_)
      if (version.pinned) pinned.insert(name_of(version));
    counting_ = std::move(*left);
    const auto with_its_pin = [&](VersionInfo version) {
      version.pinned |= pinned.contains(name_of(version));
      return version;
    };
    std::ranges::transform(counting_, counting_.begin(), with_its_pin);
    for (const VersionInfo& version : *committed_meanwhile_) count(with_its_pin(version));
  }
  committed_meanwhile_.reset();
}

void Engine::Impl::ask_to_sweep() {
  std::lock_guard lock(mutex_);
  sweep_due_ = true;
}

// From memory: with thousands of versions a look at the directory takes longer than the commit itself, and even a look on
// the cleaner's thread is in its way. So the cleaner is asked only if there is something for it to do.
void Engine::Impl::note_committed(const Manifest& manifest, bool pinned) {
  bool due = false;
  {
    std::lock_guard lock(mutex_);
    VersionInfo version = version_info(manifest);
    version.pinned = pinned;
    if (committed_meanwhile_) committed_meanwhile_->push_back(version);
    due = count(version);
    due |= std::exchange(sweep_due_, false);
  }
  if (cleaner_ && due) cleaner_->request();
}

// Caller holds mutex_. True: an older one expires by it, and is left out from now on.
bool Engine::Impl::count(const VersionInfo& version) {
  if (std::ranges::find(counting_, name_of(version), name_of) == counting_.end()) counting_.push_back(version);
  const auto names = expired(counting_, retention_policy());
  const std::set<VersionName> gone(names.begin(), names.end());
  std::erase_if(counting_, [&](const VersionInfo& info) { return gone.contains(name_of(info)); });
  return !gone.empty();
}

std::function<bool()> Engine::Impl::room_maker() {
  // Counted from before the call that found no space: what went since then is worth another try as well.
  return [this, before = versions_->removed_count(), pauses = 0]() mutable {
    if (cleaner_) {
      cleaner_->run_now();
      const std::uint64_t now = versions_->removed_count();
      if (std::exchange(before, now) != now) return true;
      if (!versions_->removed_lately()) return false;
    }
    if (pauses++ == kRoomPauses) return false;
    std::this_thread::sleep_for(kRoomPause);
    return true;
  };
}

}  // namespace slackwater
