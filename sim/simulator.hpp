// Simulator: the state behind the exported functions. There is one per process, as there is one driver. It is a global,
// but never part of the product. Schedule has the order of work, Captures what is recorded instead of run.
// Thread rule: `mutex` guards everything. Lifetime: never destroyed, because calls may come while the process exits.
// Its threads are joined then, and later calls return CUDA_ERROR_DEINITIALIZED.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "device/cuda/abi.hpp"
#include "sim/call.hpp"
#include "sim/captures.hpp"
#include "sim/device.hpp"
#include "sim/device_memory.hpp"
#include "sim/driver_lock.hpp"
#include "sim/graph.hpp"
#include "sim/host_memory.hpp"
#include "sim/schedule.hpp"
#include "sim/settings.hpp"
#include "sim/sim_cuda.h"
#include "sim/work.hpp"

namespace slackwater::sim {

// What an exported function needs. Combine with |.
inline constexpr unsigned kAlways = 0;
inline constexpr unsigned kInit = 1;
inline constexpr unsigned kContext = 2 | kInit;  // a current context without a sticky error
inline constexpr unsigned kUnsafe = 4;           // forbidden during a capture that covers this thread
inline constexpr unsigned kCleanup = 8;          // works on a failed context, too, and then returns its error

class Simulator {
 public:
  Simulator() = default;

  // --- calls ---
  // Counts the call, and refuses it if the driver would or if a test asked for a fault.
  [[nodiscard]] CUresult admit(const char* symbol, unsigned needs, Call& call);
  // Takes as long as the call costs (SWSIM_COST_...). Returns the device's error if it failed meanwhile.
  [[nodiscard]] CUresult spend(Call& call, int cost, std::uint64_t size_bytes = 0);
  [[nodiscard]] bool forked() const;  // in a child: the driver is unusable there
  [[nodiscard]] ThreadState& this_thread() const;

  // --- life ---
  void read_settings();           // SWSIM_CONFIG; does nothing if called again
  void make_devices(int count);   // before init(); 0: take the number from the environment
  [[nodiscard]] CUresult init();  // starts the threads; does nothing if called again
  void stop();                    // joins the threads; call it without the lock
  [[nodiscard]] std::uint64_t alive() const;
  void forget_everything();  // back to the start of the process; only if nothing is alive and the threads are joined
  void destroy_context(Call& call, Device& device);

  [[nodiscard]] std::uint64_t free_bytes(const Device& device) const;  // what cuMemAlloc could still hand out

  // --- handles; null if destroyed or never created ---
  [[nodiscard]] std::uintptr_t new_handle() { return next_handle_ += 0x100; }
  [[nodiscard]] Device* device_at(int ordinal);
  [[nodiscard]] Device* device_of(cuda::CUcontext context);
  [[nodiscard]] StreamPtr stream_of(const Call& call, cuda::CUstream handle);
  [[nodiscard]] EventPtr event_of(cuda::CUevent handle);
  CUresult bad_handle(const void* handle);  // counts it; ends the process if a test asked for that

  std::mutex mutex;
  bool initialized = false;
  bool stopping = false;
  bool deinitialized = false;
  std::vector<std::unique_ptr<Device>> devices;
  std::unordered_map<std::uintptr_t, StreamPtr> streams;
  std::unordered_map<std::uintptr_t, EventPtr> events;
  std::unordered_map<std::uintptr_t, std::shared_ptr<const Graph>> graphs;
  std::unordered_map<std::uintptr_t, std::shared_ptr<GraphExec>> graph_execs;
  Captures captures;
  Schedule schedule{*this};
  DriverLock driver_lock{stopping};
  DeviceMemory memory;
  HostMemory host;
  swsim_counts counts{};  // except for those that are sizes of something above
  std::map<std::string, std::uint64_t, std::less<>> calls;
  struct CallFault {
    std::string symbol;
    std::uint64_t remaining;
    CUresult code;
    bool sticky;
  };
  std::vector<CallFault> call_faults;
  bool crash_on_bad_handles = false;
  unsigned broken = 0;      // what does not work: SWSIM_IGNORE_WAITS and others
  std::mt19937_64 shuffle;  // for the order inside a batch

 private:
  std::vector<std::jthread> threads_;
  std::atomic<pid_t> owner_{0};
  std::optional<Settings> settings_;  // of the environment, once read; empty if they are wrong
  bool settings_wrong_ = false;
  std::uint64_t generation_ = 1;
  std::uintptr_t next_handle_ = 0x5157'0000'0000;  // never reused, never a valid address
};

[[nodiscard]] Simulator& simulator();

// Wraps every exported function: takes the lock, checks the call, and lets no exception out.
template <class Body>
CUresult enter(const char* symbol, unsigned needs, Body body) noexcept {
  Simulator& sim = simulator();
  if (sim.forked()) return CUresult::kNotInitialized;
  try {
    std::unique_lock lock(sim.mutex);
    Call call{lock, sim.this_thread()};
    if (const CUresult refused = sim.admit(symbol, needs, call); refused != CUresult::kSuccess) return refused;
    const CUresult result = body(sim, call);
    const bool sticky = (needs & kCleanup) != 0 && call.device != nullptr && call.device->failed();
    return result == CUresult::kSuccess && sticky ? call.device->error : result;
  } catch (const std::bad_alloc&) {
    return CUresult::kOutOfMemory;
  } catch (...) {
    return CUresult::kUnknown;
  }
}

}  // namespace slackwater::sim
