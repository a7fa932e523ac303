// Simulator: the state behind the exported functions. One a process, as the real driver is one a process; the only
// global of the code base, and never in the product.
// Thread rule: everything is guarded by `mutex`. Lifetime: never destroyed, because calls may come while a process
// exits; its threads are joined then, and later calls answer CUDA_ERROR_DEINITIALIZED.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "device/cuda_abi.hpp"
#include "sim/device.hpp"
#include "sim/device_memory.hpp"
#include "sim/host_memory.hpp"
#include "sim/sim_cuda.h"
#include "sim/work.hpp"

namespace slackwater::sim {

using cuda::CUresult;

// What an exported function needs, or-ed.
inline constexpr unsigned kAlways = 0;
inline constexpr unsigned kInit = 1;
inline constexpr unsigned kContext = 2 | kInit;  // a current context without a sticky error
inline constexpr unsigned kUnsafe = 4;           // forbidden while a capture that covers this thread is going on
inline constexpr unsigned kCleanup = 8;          // does its work on a failed context too, and then returns the error

// Of the calling thread; forgotten when the simulator is reset.
struct ThreadState {
  std::uint64_t generation = 0;
  std::vector<cuda::CUcontext> contexts;  // the current one last
  cuda::CUstreamCaptureMode capture_mode = cuda::CUstreamCaptureMode::kGlobal;
};

// One call under way: who calls, on which device.
struct Call {
  std::unique_lock<std::mutex>& lock;
  ThreadState& thread;
  Device* device = nullptr;  // of the current context; null if there is none
};

// Something to be put on a stream.
struct Task {
  EngineKind engine = EngineKind::kNone;
  std::unique_ptr<Work> work;
  Duration duration{0};
  std::uint64_t copy_bytes = 0;
  bool pageable = false;
};

class Simulator {
 public:
  Simulator() = default;

  // --- calls ---
  // Counts the call and refuses it where the driver would, or where a fault was ordered.
  [[nodiscard]] CUresult admit(const char* symbol, unsigned needs, Call& call);
  [[nodiscard]] bool forked() const;  // in a child: the driver is unusable there
  [[nodiscard]] ThreadState& this_thread() const;

  // --- life ---
  void make_devices(int count);   // before init; 0: as the environment says
  [[nodiscard]] CUresult init();  // starts the threads; again: does nothing
  void stop();                    // joins them. Without the lock.
  [[nodiscard]] std::uint64_t alive() const;
  void forget_everything();  // as after the start of the process; only with nothing alive and the threads joined
  void destroy_context(Call& call, Device& device);

  // --- handles; null for one that was destroyed or never existed ---
  [[nodiscard]] std::uintptr_t new_handle() { return next_handle_ += 0x100; }
  [[nodiscard]] Device* device_at(int ordinal);
  [[nodiscard]] Device* device_of(cuda::CUcontext context);
  [[nodiscard]] StreamPtr stream_of(const Call& call, cuda::CUstream handle);
  [[nodiscard]] EventPtr event_of(cuda::CUevent handle);

  // --- work --- Puts tasks behind everything on the stream; among themselves they are unordered. No task: a marker.
  // `queued` gets the op that stands for all of them, null if they were recorded into a capture.
  [[nodiscard]] CUresult enqueue(const StreamPtr& stream, std::vector<Task> tasks, OpPtr* queued = nullptr,
                                 const OpPtr& also_after = nullptr);
  void complete(const OpPtr& op, TimePoint at);
  // The calling thread sleeps; `spins`: on a real device it would not.
  void wait(Call& call, const OpPtr& op, bool spins);
  void wait_for_device(Call& call, Device& device);
  [[nodiscard]] bool idle(const Stream& stream) const;

  // --- capture ---
  [[nodiscard]] CUresult begin_capture(const StreamPtr& stream, cuda::CUstreamCaptureMode mode);
  [[nodiscard]] CUresult end_capture(const StreamPtr& stream);
  void abandon_capture(Stream& stream);  // it is being destroyed; does nothing if it captures nothing
  // Refuses a call that is unsafe next to captures that cover this thread, and spoils those.
  [[nodiscard]] CUresult check_unsafe(const ThreadState& thread);
  // Spoils captures of streams that are implicitly ordered with the legacy stream; whether there were any.
  bool spoil_implicit(const Device& device);
  [[nodiscard]] bool capturing_implicitly(const Device& device) const;
  [[nodiscard]] CUresult wait_in_capture(const StreamPtr& stream, Event& event);

  std::mutex mutex;
  bool initialized = false;
  bool stopping = false;
  bool deinitialized = false;
  std::vector<std::unique_ptr<Device>> devices;
  std::unordered_map<std::uintptr_t, StreamPtr> streams;
  std::unordered_map<std::uintptr_t, EventPtr> events;
  std::set<std::uintptr_t> graphs;
  std::vector<CapturePtr> captures;  // not ended
  DeviceMemory memory;
  HostMemory host;
  swsim_counts counts{};  // those that are not sizes of something above
  std::map<std::string, std::uint64_t, std::less<>> calls;
  struct CallFault {
    std::string symbol;
    std::uint64_t remaining;
    CUresult code;
    bool sticky;
  };
  std::vector<CallFault> call_faults;
  std::mt19937_64 shuffle;  // order inside a batch

 private:
  void link(const OpPtr& before, const OpPtr& after);
  void launch(const OpPtr& op);
  [[nodiscard]] OpPtr new_op(const Stream& stream, Task task);

  std::condition_variable progress_;  // an op that is watched is done
  std::vector<std::jthread> threads_;
  std::atomic<pid_t> owner_{0};
  std::uint64_t generation_ = 1;
  std::uintptr_t next_handle_ = 0x5157'0000'0000;  // never reused, never a valid address
  std::uint64_t next_sequence_ = 0;
};

[[nodiscard]] Simulator& simulator();

// The frame of every exported function: lock, admission, and no exception to the caller.
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
