// CopyEngine: copies in one direction for one device. It takes the copies that are ready one after the other, without
// regard to priority. While the stream of the last copy has another one ready, other streams wait. Each copy takes the
// latency plus its bytes at the configured speed.
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
  void wake();  // call it when stalled, failed or stopping has changed
  void run();   // body of its thread; ends when the simulator stops
  // False if the device failed before this many copies had begun.
  [[nodiscard]] bool wait_begun(std::unique_lock<std::mutex>& lock, std::uint64_t copies);
  [[nodiscard]] const swsim_engine_stats& stats() const { return stats_; }

 private:
  [[nodiscard]] OpPtr take_first();
  [[nodiscard]] Duration duration_of(const Op& op) const;
  void copy(std::unique_lock<std::mutex>& lock, Op& op);
  // Sleeps until the deadline, not counting the time during which copies are stalled. False if the device has failed or
  // the simulator stops.
  [[nodiscard]] bool sleep_until(std::unique_lock<std::mutex>& lock, TimePoint& deadline);

  Simulator& simulator_;
  Device& device_;
  const EngineKind kind_;
  std::condition_variable changed_;
  std::condition_variable begun_;
  std::vector<OpPtr> ready_;
  TimePoint free_at_;              // simulated end of the last copy
  std::uint64_t last_stream_ = 0;  // of the last copy
  swsim_engine_stats stats_{};
};

}  // namespace slackwater::sim
