// Device, and what lives in its primary context: streams, events, captures.
// Owner: Simulator. Thread rule: guarded by Simulator::mutex, except for memory_mutex. That one guards the bytes, and
// nobody waits for it while holding Simulator::mutex. Lifetime: devices live until the simulator is reset. The rest is
// shared.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "device/cuda/abi.hpp"
#include "sim/compute_engine.hpp"
#include "sim/copy_engine.hpp"
#include "sim/sim_cuda.h"
#include "sim/work.hpp"

namespace slackwater::sim {

struct Stream;
using StreamPtr = std::shared_ptr<Stream>;

// Priorities go from 0, the least, down to the greatest, which is the smallest number.
inline constexpr int kLeastPriority = 0;
inline constexpr int kGreatestPriority = -5;
inline constexpr int kMaxPitch = 0x7fff'ffff;

// A capture of streams into a graph. A stream that waits for an event of the capture joins it.
struct Capture {
  cuda::CUstreamCaptureMode mode = cuda::CUstreamCaptureMode::kGlobal;
  std::thread::id thread;
  bool invalidated = false;
  bool ended = false;
  std::vector<StreamPtr> streams;  // the origin first
};
using CapturePtr = std::shared_ptr<Capture>;

[[nodiscard]] inline std::uint64_t next_stream_id() {
  static std::uint64_t last = 0;  // guarded by Simulator::mutex, as streams are made with it held
  return ++last;
}

struct Stream {
  Device* device = nullptr;
  bool legacy = false;
  bool blocking = true;  // in order with the legacy default stream
  int priority = 0;
  std::uint64_t id = next_stream_id();  // never reused
  std::shared_ptr<Backlog> backlog = std::make_shared<Backlog>();
  OpPtr tail;
  CapturePtr capture;
  std::uint64_t recorded = 0;  // calls recorded into the capture
  bool joined = false;         // the origin has waited for all of them
};

struct Event {
  Device* device = nullptr;
  unsigned flags = 0;
  OpPtr record;        // null: never recorded, so it counts as reached
  CapturePtr capture;  // the one in which it was last recorded
  std::weak_ptr<Stream> captured_on;
  std::uint64_t captured_at = 0;
};
using EventPtr = std::shared_ptr<Event>;

struct Device {
  Device(Simulator& owner, int device_ordinal);

  [[nodiscard]] bool failed() const { return error != cuda::CUresult::kSuccess; }
  void fail(cuda::CUresult code);  // the first error sticks
  void wake();
  // The error with which the copy that begins now must fail.
  [[nodiscard]] cuda::CUresult take_copy_fault();
  // Whether the copy to the host that begins now must deliver a wrong byte.
  [[nodiscard]] bool take_flip() { return flip_every > 0 && ++flip_count % flip_every == 0; }
  void take_memory(std::uint64_t leave_bytes);
  void set_stall(int mode);

  Simulator& simulator;
  const int ordinal;
  swsim_device_config config;
  std::mutex memory_mutex;
  std::uint64_t taken_bytes = 0;  // by swsim_take_memory

  // The primary context.
  std::uint64_t retained = 0;
  cuda::CUcontext context = nullptr;  // null while not retained
  cuda::CUresult error = cuda::CUresult::kSuccess;
  StreamPtr legacy_stream;
  std::map<std::thread::id, StreamPtr> thread_streams;
  std::vector<OpPtr> orphans;  // last ops of destroyed streams

  CopyEngine to_host;
  CopyEngine to_device;
  ComputeEngine compute;
  int stall = SWSIM_STALL_OFF;
  TimePoint released_at;  // when stalled copies begin or go on
  struct CopyFault {
    std::uint64_t remaining;
    cuda::CUresult code;
  };
  std::vector<CopyFault> copy_faults;
  std::uint64_t flip_every = 0;  // copies to the host; 0: none
  std::uint64_t flip_count = 0;
};

// If `bytes_per_s` is 0, only the latency counts.
[[nodiscard]] Duration transfer_time(std::uint64_t bytes, std::uint64_t bytes_per_s, std::uint64_t latency_ns);

}  // namespace slackwater::sim
