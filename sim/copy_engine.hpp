// CopyEngine: one direction of one device. Takes the copies that are ready one after the other, those of streams with
// higher priority first, and gives each a time window: latency plus bytes at the set speed.
// Thread rule: everything but run() is called with Simulator::mutex held. Lifetime: owned by its Device.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <vector>

#include "sim/sim_cuda.h"
#include "sim/work.hpp"

namespace slackwater::sim {

class Simulator;

class CopyEngine {
 public:
  CopyEngine(Simulator& simulator, Device& device, EngineKind kind);

  void add(OpPtr op);
  void wake();  // stalled, failed or stopping has changed
  void run();   // body of its thread, until the simulator stops
  // False if the device failed before so many copies had begun.
  [[nodiscard]] bool wait_begun(std::unique_lock<std::mutex>& lock, std::uint64_t copies);
  [[nodiscard]] const swsim_engine_stats& stats() const { return stats_; }

 private:
  [[nodiscard]] OpPtr take_first();
  [[nodiscard]] Duration window_of(const Op& op) const;
  void copy(std::unique_lock<std::mutex>& lock, Op& op);
  // Until the deadline; time during which copies are stalled does not count. False if there is no point in going on.
  [[nodiscard]] bool sleep_until(std::unique_lock<std::mutex>& lock, TimePoint& deadline);

  Simulator& simulator_;
  Device& device_;
  const EngineKind kind_;
  std::condition_variable changed_;
  std::condition_variable begun_;
  std::vector<OpPtr> ready_;
  TimePoint free_at_;  // simulated end of the last copy
  swsim_engine_stats stats_{};
};

}  // namespace slackwater::sim
