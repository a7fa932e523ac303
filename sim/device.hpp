// Device, and what lives in its primary context: streams, events, captures.
// Thread rule: guarded by Simulator::mutex, but for memory_mutex, which orders the bytes themselves and is never waited
// for with Simulator::mutex held. Lifetime: devices live until the simulator is reset; the rest is shared.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "device/cuda_abi.hpp"
#include "sim/compute_engine.hpp"
#include "sim/copy_engine.hpp"
#include "sim/sim_cuda.h"
#include "sim/work.hpp"

namespace slackwater::sim {

struct Stream;
using StreamPtr = std::shared_ptr<Stream>;

// Priorities go from 0 to the greatest, which is the smallest number.
inline constexpr int kLeastPriority = 0;
inline constexpr int kGreatestPriority = -5;
inline constexpr int kMaxPitch = 0x7fff'ffff;

// A recording of streams into a graph. Streams that wait for an event recorded in it join it.
struct Capture {
  cuda::CUstreamCaptureMode mode = cuda::CUstreamCaptureMode::kGlobal;
  std::thread::id thread;
  bool invalidated = false;
  bool ended = false;
  std::vector<StreamPtr> streams;  // the origin first
};
using CapturePtr = std::shared_ptr<Capture>;

struct Stream {
  Device* device = nullptr;
  bool legacy = false;
  bool blocking = true;  // in order with the legacy default stream
  int priority = 0;
  OpPtr tail;
  CapturePtr capture;
  std::uint64_t recorded = 0;  // calls recorded into the capture
  bool joined = false;         // the origin has waited for all of them
};

struct Event {
  Device* device = nullptr;
  unsigned flags = 0;
  OpPtr record;        // null: never recorded, counts as reached
  CapturePtr capture;  // it was last recorded in
  std::weak_ptr<Stream> captured_on;
  std::uint64_t captured_at = 0;
};
using EventPtr = std::shared_ptr<Event>;

struct Device {
  Device(Simulator& simulator, int device_ordinal);

  [[nodiscard]] bool failed() const { return error != cuda::CUresult::kSuccess; }
  void fail(cuda::CUresult code);  // the first error sticks
  void wake();
  // What the copy that begins now is to fail with.
  [[nodiscard]] cuda::CUresult take_copy_fault();

  const int ordinal;
  swsim_device_config config;
  std::mutex memory_mutex;

  // The primary context.
  std::uint64_t retained = 0;
  cuda::CUcontext context = nullptr;  // null while not retained
  cuda::CUresult error = cuda::CUresult::kSuccess;
  StreamPtr legacy_stream;
  std::map<std::thread::id, StreamPtr> thread_streams;
  std::vector<OpPtr> orphans;  // last work of destroyed streams

  CopyEngine to_host;
  CopyEngine to_device;
  ComputeEngine compute;
  int stall = SWSIM_STALL_OFF;
  TimePoint released_at;  // copies that were stalled begin or go on from there
  struct CopyFault {
    std::uint64_t remaining;
    cuda::CUresult code;
  };
  std::vector<CopyFault> copy_faults;
};

// At `bytes_per_s` 0 it takes no time of its own.
[[nodiscard]] Duration transfer_time(std::uint64_t bytes, std::uint64_t bytes_per_s, std::uint64_t latency_ns);

}  // namespace slackwater::sim
