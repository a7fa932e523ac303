// Op: one piece of work on a device, and what must be done before it. Streams, events and the rules of the default
// stream all come down to edges between ops; an engine takes an op once nothing is missing before it.
// Thread rule: guarded by Simulator::mutex; a Work is run by its engine's thread without that lock.
// Lifetime: shared by the stream (as its tail), events (as their record), predecessors and the engine.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "device/cuda_abi.hpp"

namespace slackwater::sim {

using Clock = std::chrono::steady_clock;
using TimePoint = Clock::time_point;
using Duration = std::chrono::nanoseconds;

struct Device;
struct Op;
using OpPtr = std::shared_ptr<Op>;

enum class EngineKind : std::uint8_t { kNone, kCompute, kDeviceToHost, kHostToDevice };

// What an op does to memory. begin() runs when its time window opens, finish() when it closes.
class Work {
 public:
  virtual ~Work() = default;
  virtual void begin() = 0;
  [[nodiscard]] virtual cuda::CUresult finish() = 0;
};

struct Op {
  Device* device = nullptr;
  EngineKind engine = EngineKind::kNone;  // kNone: a marker, done as soon as nothing is missing
  std::unique_ptr<Work> work;
  Duration duration{0};          // of a kernel
  std::uint64_t copy_bytes = 0;  // of a copy, whose duration follows from the engine's speed
  bool pageable = false;
  int priority = 0;  // as in CUDA: the smaller goes first
  std::uint64_t sequence = 0;

  std::size_t missing = 0;  // predecessors not done
  std::vector<OpPtr> next;  // successors
  bool watched = false;     // a host thread waits for it
  bool done = false;
  // Simulated times: when it could begin, when it was over. Real threads wake up late; the simulated times are not
  // late, and the next op begins from them, so that delays do not add up.
  TimePoint ready_at;
  TimePoint done_at;
};

}  // namespace slackwater::sim
