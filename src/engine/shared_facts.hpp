// What an engine and its snapshots both need to know, and what outlives the engine as long as a snapshot is held.
#pragma once

#include <atomic>
#include <chrono>

namespace slackwater {

struct SharedFacts {
  using Instant = std::chrono::steady_clock;

  // Set in a forked child: threads and locks of the parent are not ours to touch.
  std::atomic<bool> disowned{false};
  // When anything last moved: a slab staged, a write completed, a level reached. Stalls are measured from here.
  std::atomic<Instant::rep> last_progress{Instant::now().time_since_epoch().count()};

  void note_progress() { last_progress.store(Instant::now().time_since_epoch().count(), std::memory_order_relaxed); }
  [[nodiscard]] Instant::duration still_for() const {
    return Instant::now().time_since_epoch() - Instant::duration(last_progress.load(std::memory_order_relaxed));
  }
};

}  // namespace slackwater
