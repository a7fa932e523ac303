// AsyncDevice: a device that works through streams of its own while the host goes on (CUDA). Nothing here waits for the
// device except Event::wait(), the synchronous copies inherited from Device, and destructors that say so.
//
// One snapshot uses it like this (trainer's thread: T, plan thread: P, copy threads: C, landing thread: L, fence: F):
//   T  clone(volatile tensors, stream)  those that change before the fence, duplicated on the device in stream order
//   T  mark(streams)                    the point in the trainer's streams behind which the state, clones included, is complete
//   P  begin(produced, guarded, seed)   a Passage; a first look at every guarded tensor is queued
//   C  queue_copies, queue_second_look  in any order between threads; copies run behind `produced`
//   C  Passage::mark                    after each slab, and once behind everything
//   F  hold(stream, event)              work queued on `stream` from now on runs behind the copies: the fence on the device
//   L  Event::wait, Passage::unchanged  the bytes are in the slab; has the tensor changed since save()?
//
// Thread rule: thread-safe, the Passage too. Lifetime: the device outlives its events, clones and passages.
// Whatever thread calls, its current context and its stream-capture mode are as before on return.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "device/device.hpp"
#include "device/replica_places.hpp"
#include "slackwater/error.hpp"

namespace slackwater {

// A stream of the trainer: CUstream as a number. 0 and 1 are the legacy default stream, 2 the per-thread one.
using StreamHandle = std::uintptr_t;

// A point in one or more streams.
class Event {
 public:
  virtual ~Event() = default;
  // Sleeps (does not spin) until all work before this point is done. The device's error, if it failed.
  [[nodiscard]] virtual Status wait() = 0;
};

// Duplicates of tensors in device memory; freed, or kept for the next snapshot, by the destructor.
class Clones {
 public:
  virtual ~Clones() = default;
  // Packed, one for each tensor given, in the same order; null for one of no bytes.
  [[nodiscard]] virtual std::span<std::byte* const> addresses() const = 0;
};

// Bytes of tensors on their way to host memory. The destructor waits for them.
class Looks {
 public:
  virtual ~Looks() = default;
  // Waits. A digest for each of the places given, as digest_places() has it for host memory.
  [[nodiscard]] virtual Result<std::vector<std::uint64_t>> digests() = 0;
};

// The copies of one snapshot from one device. The destructor waits until none of them is running.
class Passage {
 public:
  virtual ~Passage() = default;
  // Queues the copies, of at most a slab each, in any number; they may still be running on return. `host` of every piece lies in memory that
  // was pinned (else the driver copies while the call waits; right, but slow).
  [[nodiscard]] virtual Status queue_copies(std::span<const CopyPiece> pieces) = 0;
  // The last copy of guarded tensor `guard` (an index into what begin() was given) has been queued: look at it again
  // behind that copy.
  [[nodiscard]] virtual Status queue_second_look(std::uint32_t guard) = 0;
  // A point behind everything queued by calls that have returned.
  [[nodiscard]] virtual Result<std::shared_ptr<Event>> mark() = 0;
  // Once a mark() behind its second look is over: did both looks see the same bytes?
  [[nodiscard]] virtual Result<bool> unchanged(std::uint32_t guard) = 0;
};

class AsyncDevice : public Device {
 public:
  [[nodiscard]] virtual std::string_view name() const = 0;  // "cuda:0"
  [[nodiscard]] virtual int ordinal() const = 0;
  // NUMA node of the host memory nearest to it; -1 if unknown.
  [[nodiscard]] virtual int numa_node() const = 0;

  [[nodiscard]] virtual Result<bool> capturing(StreamHandle stream) = 0;  // is a graph being recorded on it?
  // A point behind all work queued on these streams so far.
  [[nodiscard]] virtual Result<std::shared_ptr<Event>> mark(std::span<const StreamHandle> streams) = 0;
  // Queues packed duplicates of the tensors on `stream`.
  [[nodiscard]] virtual Result<std::unique_ptr<Clones>> clone(std::span<const StridedMemory> tensors,
                                                              StreamHandle stream) = 0;
  // Queues copies of the bytes at these places to the host on `stream`: they see what the work queued there so far has
  // made, and nothing that is queued later.
  [[nodiscard]] virtual Result<std::unique_ptr<Looks>> look(std::span<const ReplicaPlaces> places,
                                                            StreamHandle stream) = 0;
  // Copies and looks run behind `produced`. The tensors behind `guarded` must outlive the passage.
  [[nodiscard]] virtual Result<std::unique_ptr<Passage>> begin(std::shared_ptr<Event> produced,
                                                               std::span<const StridedMemory* const> guarded,
                                                               std::uint64_t seed) = 0;
  // Work queued on `stream` from now on runs behind `event` (of this device). Does not wait. Not for a stream that is capturing.
  [[nodiscard]] virtual Status hold(StreamHandle stream, const Event& event) = 0;
};

}  // namespace slackwater
