// EngineStatus: what an engine and its snapshots both need to know.
// Thread rule: thread-safe. Lifetime: shared; outlives the engine as long as somebody holds a snapshot.
#pragma once

#include <atomic>
#include <chrono>

#include "capture/torn_tensors.hpp"

namespace slackwater {

struct EngineStatus {
  using Instant = std::chrono::steady_clock;

  // Set in a forked child: it must not touch threads and locks of the parent.
  std::atomic<bool> disowned{false};
  // The last progress: a slab staged, a write completed, a level reached. Stalls are measured from here.
  std::atomic<Instant::rep> last_progress{Instant::now().time_since_epoch().count()};

  TornTensors torn;

  [[nodiscard]] bool is_disowned() const { return disowned.load(std::memory_order_acquire); }
  void note_progress() { last_progress.store(Instant::now().time_since_epoch().count(), std::memory_order_relaxed); }
  [[nodiscard]] Instant::duration still_for() const {
    return Instant::now().time_since_epoch() - Instant::duration(last_progress.load(std::memory_order_relaxed));
  }
};

}  // namespace slackwater
