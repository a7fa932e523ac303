// DriverLock: what some calls cost on the host, and the lock that they hold meanwhile. Pinning and allocating take
// time, and other calls of the process wait for them.
// Owner: Simulator. Thread rule: everything with Simulator::mutex held. Calls that wait or take time give it up
// meanwhile, so the devices go on. Lifetime: as long as the simulator.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "sim/sim_cuda.h"
#include "sim/work.hpp"

namespace slackwater::sim {

class DriverLock {
 public:
  struct Cost {
    std::uint64_t call_ns = 0;
    std::uint64_t ns_per_mib = 0;
  };

  explicit DriverLock(const bool& stopping) : stopping_(stopping) {}

  // Every call that uses the driver: waits for a call that holds the lock.
  void wait(std::unique_lock<std::mutex>& lock);
  // Takes as long as the call costs, and holds the lock meanwhile. The caller has waited for the lock.
  void spend(std::unique_lock<std::mutex>& lock, int call, std::uint64_t size_bytes);

  // Also for calls that are under way: they end when the new cost says so.
  void set_cost(int call, Cost cost);
  void set_exclusive(bool exclusive);  // false: other calls do not wait
  [[nodiscard]] const swsim_lock_stats& stats() const { return stats_; }
  void reset();
  void wake() { changed_.notify_all(); }

 private:
  [[nodiscard]] TimePoint end_of(int call, std::uint64_t size_bytes, TimePoint begun) const;

  const bool& stopping_;
  std::array<Cost, SWSIM_COSTS> costs_{};
  bool exclusive_ = true;
  bool held_ = false;
  TimePoint released_at_;  // simulated: a thread that wakes up late does not count as having held it
  TimePoint cost_changed_at_;
  std::condition_variable changed_;
  swsim_lock_stats stats_{};
};

}  // namespace slackwater::sim
