// Call: one call into the driver while it runs, and the state of the thread that makes it. Plain values.
// Thread rule: guarded by Simulator::mutex, which the call holds.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "device/cuda/abi.hpp"
#include "sim/device.hpp"

namespace slackwater::sim {

using cuda::CUresult;

// State of the calling thread. A reset of the simulator drops it.
struct ThreadState {
  std::uint64_t generation = 0;
  std::vector<cuda::CUcontext> contexts;  // the current one last
  cuda::CUstreamCaptureMode capture_mode = cuda::CUstreamCaptureMode::kGlobal;
};

// A call in progress: its thread and its device.
struct Call {
  std::unique_lock<std::mutex>& lock;
  ThreadState& thread;
  Device* device = nullptr;  // of the current context; null if there is none
};

}  // namespace slackwater::sim
