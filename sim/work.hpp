// Op: one piece of work on a device, and what must be done before it. Streams, events and the rules of the default
// stream all become edges between ops. An engine takes an op once all its predecessors are done.
// Thread rule: guarded by Simulator::mutex. The engine's thread runs a Work without that lock.
// Lifetime: shared by the stream (as its tail), events (as their record), predecessors and the engine.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "device/cuda/abi.hpp"

namespace slackwater::sim {

using Clock = std::chrono::steady_clock;
using TimePoint = Clock::time_point;
using Duration = std::chrono::nanoseconds;

struct Device;
struct Op;
using OpPtr = std::shared_ptr<Op>;

enum class EngineKind : std::uint8_t { kNone, kCompute, kDeviceToHost, kHostToDevice };

// What an op does to memory. begin() runs when the op's time begins, finish() when it ends.
class Work {
 public:
  virtual ~Work() = default;
  virtual void begin() = 0;
  [[nodiscard]] virtual cuda::CUresult finish() = 0;
  virtual void spoil_a_byte(std::uint64_t /*seed*/) {}  // after finish(): what a faulty bus would do
};

// How much of a stream is not done yet. Shared by the stream and its ops, because ops outlive a destroyed stream.
struct Backlog {
  std::size_t pending = 0;
  std::size_t waiting = 0;  // calls that wait for room
};

struct Op {
  Device* device = nullptr;
  EngineKind engine = EngineKind::kNone;  // kNone: a marker, done as soon as its predecessors are
  std::unique_ptr<Work> work;
  Duration duration{0};          // for a kernel
  std::uint64_t copy_bytes = 0;  // for a copy, whose duration follows from the engine's speed
  bool pageable = false;
  int priority = 0;  // as in CUDA: the smaller number goes first
  std::uint64_t stream = 0;  // id of its stream
  std::shared_ptr<Backlog> backlog;
  std::uint64_t sequence = 0;

  std::size_t missing = 0;  // predecessors that are not done
  std::vector<OpPtr> next;  // successors
  bool watched = false;     // a host thread waits for it
  bool done = false;
  // Simulated times at which the op could begin and was done. Real threads wake up late, but simulated times are exact,
  // and the next op starts from them. So delays do not add up.
  TimePoint ready_at;
  TimePoint done_at;
};

}  // namespace slackwater::sim
