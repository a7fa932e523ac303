// Stager: copies snapshots into slabs, window by window, in the order the snapshots came. N copy threads share the
// windows of the front snapshot; a pool without a free slab makes them wait. Strictly one snapshot after the other gets
// slabs: else two in flight deadlock.
// Host memory is copied by the threads themselves. Copies from an asynchronous device are only queued by them: the slab is full
// when the device is done, which the landing thread waits for.
// Thread rule: enqueue() and cancel() from any thread. Lifetime: Pool, Device and the sinks outlive it; the destructor
// joins.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/async_device.hpp"
#include "device/device.hpp"
#include "layout/stream_layout.hpp"
#include "slackwater/error.hpp"
#include "slackwater/tensor.hpp"
#include "stage/pool.hpp"

namespace slackwater {

// A window of a stream, complete in its slab. Bytes past size_bytes up to the next multiple of 4096 are zero.
struct FullSlab {
  Lease lease;
  std::uint32_t part = 0;        // which stream of the snapshot
  std::uint64_t offset = 0;      // in the stream
  std::uint64_t size_bytes = 0;  // exact; the last window of a stream may be short
};

inline constexpr std::uint32_t kOnHost = ~0u;  // Source::passage

// One tensor to stage.
struct Source {
  StridedMemory memory;
  Device* device = nullptr;
  bool guarded = false;             // lazy: look at it again after its last copy
  std::uint64_t fingerprint = 0;    // taken at save(); of host memory, or of everything when paranoid
  std::uint32_t passage = kOnHost;  // on an asynchronous device: index into StageJob::passages
  std::uint32_t guard = 0;          // there: its number among the guarded tensors of the passage
};

// The copies of one asynchronous device, and a point in its streams.
struct DevicePassage {
  AsyncDevice* device = nullptr;
  std::unique_ptr<Passage> passage;
};
struct DevicePoint {
  AsyncDevice* device = nullptr;
  std::shared_ptr<Event> event;
};

// Everything the copy threads need of one snapshot. Constant while staging, but for the callbacks being called.
struct StageJob {
  std::shared_ptr<const SnapshotLayout> layout;
  std::vector<Source> sources;          // parallel to State::tensors; aliases unused
  std::vector<std::string> names;       // of the sources, for messages
  std::string tree;                     // source of kTreeSource
  std::uint64_t seed = 0;               // of the fingerprints
  bool whole_fingerprint = false;       // paranoid
  std::vector<DevicePassage> passages;  // destroyed before on_done
  // From copy threads, any order, several at once; must not block for long.
  std::function<void(FullSlab)> on_slab;
  // With passages only, at most once, from a copy thread, before on_done: host memory has been copied, and every copy from a
  // device has been queued before its point. Not called when paranoid: then the device must stand still until on_done.
  std::function<void(std::vector<DevicePoint>)> on_queued;
  // Once, from a copy thread or the landing thread, after the last read of any source: staged, or kTorn with the tensor's name as
  // its path, kTimeout, kClosed, a device error. All on_slab calls happened before.
  std::function<void(Status)> on_done;
};

struct StagerOptions {
  unsigned copy_threads = 2;
  std::chrono::milliseconds stall_timeout{60'000};
};

class Stager {
 public:
  Stager(Pool& pool, StagerOptions options);
  ~Stager();  // stops: jobs not staged end with kClosed

  // Ends jobs not staged with kClosed and joins the threads; cancel() has no effect afterwards, and a job enqueued ends at once
  // with kClosed. Waits for copies that a device has under way. Idempotent.
  void stop();

  void enqueue(std::shared_ptr<StageJob> job);
  // Gives a job up: no further window is begun; on_done(error) follows. No effect if it is staged already.
  void cancel(const std::shared_ptr<StageJob>& job, Error error);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace slackwater
