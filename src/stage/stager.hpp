// Stager: copies snapshots into slabs, window by window, in the order the snapshots came. N copy threads share the
// windows of the front snapshot; a pool without a free slab makes them wait. Strictly one snapshot after the other gets
// slabs: else two in flight deadlock.
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

// One tensor to stage.
struct Source {
  StridedMemory memory;
  Device* device = nullptr;
  bool guarded = false;           // lazy: compare the fingerprint after the last copy
  std::uint64_t fingerprint = 0;  // taken at save()
};

// Everything the copy threads need of one snapshot. Constant while staging, but for the callbacks being called.
struct StageJob {
  std::shared_ptr<const SnapshotLayout> layout;
  std::vector<Source> sources;     // parallel to State::tensors; aliases unused
  std::vector<std::string> names;  // of the sources, for messages
  std::string tree;                // source of kTreeSource
  std::uint64_t seed = 0;          // of the fingerprints
  bool whole_fingerprint = false;  // paranoid
  // From copy threads, any order, several at once; must not block for long.
  std::function<void(FullSlab)> on_slab;
  // Once, from a copy thread, after the last read of any source: staged, or kTorn with the tensor's name as its path,
  // kTimeout, kClosed, a device error. All on_slab calls happened before.
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

  // Ends jobs not staged with kClosed and joins the threads; cancel() has no effect afterwards. Idempotent.
  void stop();

  void enqueue(std::shared_ptr<StageJob> job);
  // Gives a job up: no further window is begun; on_done(error) follows. No effect if it is staged already.
  void cancel(const std::shared_ptr<StageJob>& job, Error error);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace slackwater
