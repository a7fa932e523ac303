// AsyncDevice: a device that works on streams of its own while the host goes on (CUDA). Nothing here waits for the
// device, except Event::wait(), the synchronous copies inherited from Device, and destructors that say so.
//
// One snapshot uses it like this (T: trainer's thread, P: plan thread, C: copy threads, W: copy waiter, F: fence):
//   T  copy_early(tensors, stream)      copies volatile tensors to pinned host memory, in stream order
//   T  record_event(streams)            marks the point after which the state, with its early copies, is complete
//   P  begin(produced, guarded, seed)   makes a DeviceCopies and queues the first sample of every guarded tensor
//   C  queue_copies                     queues copies, which run after `produced`; threads in any order
//   C  queue_second_sample              samples a guarded tensor again, after its last copy
//   C  DeviceCopies::record_event       after each slab, and once after everything
//   F  stream_wait(stream, event)       the fence on the device: later work on `stream` runs after the copies
//   W  Event::wait                      the bytes are in the slab
//   W  DeviceCopies::unchanged          whether the tensor is the same as at save()
//
// No call here allocates device memory: the trainer may own all of it, or may need what is left.
//
// Owner: Devices. Thread rule: thread-safe, and so is DeviceCopies. Lifetime: the device outlives its events, early
// copies and device copies. On return, the calling thread's current context and stream-capture mode are as before.
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

// What leaves a device before the trainer's own copies may pass. Options::copy_turn_bytes has the same default.
inline constexpr std::uint64_t kCopyTurnBytes = 2u << 20;

// A stream of the trainer: a CUstream as a number. 0 and 1 are the legacy default stream, 2 is the per-thread one.
// Never keep one. The trainer may destroy its stream as soon as the call that named it has returned, and the driver may
// crash on a stale handle. Whoever needs the point later keeps an Event, which outlives the stream.
using StreamHandle = std::uintptr_t;

// Whether work that is queued on a stream becomes part of a graph instead of being run.
enum class CaptureStatus : std::uint8_t {
  kNone,
  kCapturing,
  kImplicit,  // the legacy default stream, while a stream that is ordered with it is being captured: it takes no work
};

// A point in one or more streams.
class Event {
 public:
  virtual ~Event() = default;
  // Sleeps, without spinning, until all work before this point is done. Returns the device's error if it failed.
  [[nodiscard]] virtual Status wait() = 0;
};

// Packed copies of tensors on their way to pinned host memory. The destructor waits for them and keeps the memory for
// the next snapshot.
class EarlyCopies {
 public:
  virtual ~EarlyCopies() = default;
  // In host memory, in the order of the tensors; null for a tensor without bytes.
  [[nodiscard]] virtual std::span<const std::byte* const> addresses() const = 0;
  // The bytes may be read once this has happened.
  [[nodiscard]] virtual const std::shared_ptr<Event>& filled() const = 0;
};

// Sampled bytes of tensors on their way to host memory. The destructor waits for them.
class PendingSamples {
 public:
  virtual ~PendingSamples() = default;
  // Waits. Returns a digest per ReplicaPlaces, equal to what digest_places() returns for host memory.
  [[nodiscard]] virtual Result<std::vector<std::uint64_t>> digests() = 0;
};

// The copies of one snapshot from one device. The destructor waits until none of them runs any more.
class DeviceCopies {
 public:
  virtual ~DeviceCopies() = default;
  // Queues any number of copies of at most one slab each. They may still run on return. CopyPiece::host should be
  // pinned memory. Otherwise the driver copies while the call waits, which is correct but slow.
  [[nodiscard]] virtual Status queue_copies(std::span<const CopyPiece> pieces) = 0;
  // At most how many copies the driver has to be given for so many of contiguous bytes.
  [[nodiscard]] virtual std::uint64_t operations(std::uint64_t copies, std::uint64_t /*size_bytes*/) const {
    return copies;
  }
  // The fence was called. Until then, copies are queued so that the trainer's own can pass between them. From now on,
  // with as few operations as possible. Does not wait.
  virtual void at_once() {}
  // Samples guarded tensor `guard`, an index into the list given to begin(), a second time. Call it after the last copy
  // of that tensor has been queued.
  [[nodiscard]] virtual Status queue_second_sample(std::uint32_t guard) = 0;
  // A point after everything that was queued by calls that have returned.
  [[nodiscard]] virtual Result<std::shared_ptr<Event>> record_event() = 0;
  // Whether both samples are equal. Call it once an event that was recorded after the second sample has been reached.
  [[nodiscard]] virtual Result<bool> unchanged(std::uint32_t guard) = 0;
};

class AsyncDevice : public Device {
 public:
  [[nodiscard]] virtual std::string_view name() const = 0;  // "cuda:0"
  [[nodiscard]] virtual int ordinal() const = 0;
  // The NUMA node of the nearest host memory; -1 if unknown.
  [[nodiscard]] virtual int numa_node() const = 0;

  [[nodiscard]] virtual Result<CaptureStatus> capture_status(StreamHandle stream) = 0;
  // A point after all work that is queued on these streams so far.
  [[nodiscard]] virtual Result<std::shared_ptr<Event>> record_event(std::span<const StreamHandle> streams) = 0;
  // Queues copies of the tensors behind the work that is queued on `stream` so far. What is queued there later waits
  // for them.
  [[nodiscard]] virtual Result<std::unique_ptr<EarlyCopies>> copy_early(std::span<const StridedMemory> tensors,
                                                                        StreamHandle stream) = 0;
  // Samples the bytes at these places, in the order of `stream`. The samples see the results of the work queued there
  // so far, and nothing that is queued later.
  [[nodiscard]] virtual Result<std::unique_ptr<PendingSamples>> sample(std::span<const ReplicaPlaces> places,
                                                                       StreamHandle stream) = 0;
  // Copies and samples run after `produced`. The tensors in `guarded` must outlive the DeviceCopies.
  [[nodiscard]] virtual Result<std::unique_ptr<DeviceCopies>> begin(std::shared_ptr<Event> produced,
                                                                    std::span<const StridedMemory* const> guarded,
                                                                    std::uint64_t seed) = 0;
  // Work queued on `stream` from now on runs after `event`, which is of this device. Does not wait. The stream must not
  // be capturing.
  [[nodiscard]] virtual Status stream_wait(StreamHandle stream, const Event& event) = 0;
};

}  // namespace slackwater
