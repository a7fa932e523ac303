// Stager: copies snapshots into slabs, chunk by chunk, in the order the snapshots came. Its copy threads, "sw-copy-N",
// share the chunks of the front snapshot, and wait when the pool has no free slab. Only the front snapshot gets slabs:
// if two shared them, each could hold half of the pool and wait for the other half for ever.
// The copy threads copy host memory themselves. They only queue copies from an asynchronous device. The slab is full
// when the device is done, and the CopyWaiter waits for that.
// Thread rule: every call may come from any thread. Lifetime: the Pool, the devices and whatever the callbacks use
// outlive it; the destructor joins the threads.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "capture/source.hpp"
#include "device/async_device.hpp"
#include "device/device.hpp"
#include "layout/file_layout.hpp"
#include "slackwater/error.hpp"
#include "slackwater/tensor.hpp"
#include "stage/pool.hpp"

namespace slackwater {

// A chunk of a file, complete in its slab. Bytes past size_bytes up to the next multiple of 4096 are zero.
struct FullSlab {
  Lease lease;
  std::uint32_t part = 0;        // which file of the snapshot
  std::uint64_t offset = 0;      // in the file
  std::uint64_t size_bytes = 0;  // exact; the last chunk of a file may be short
};

// A snapshot's copies from one asynchronous device.
struct CopiesOfDevice {
  AsyncDevice* device = nullptr;
  std::unique_ptr<DeviceCopies> copies;
  std::shared_ptr<Event> early_filled;  // when the early copies from it may be read (Source::early_from); may be null
};
// The point in a device's queue behind which all copies of a snapshot are done.
struct DevicePoint {
  AsyncDevice* device = nullptr;
  std::shared_ptr<Event> event;
};

// Everything the copy threads need of one snapshot. Constant while it is staged, except that the callbacks are called.
struct StageJob {
  std::shared_ptr<const SnapshotLayout> layout;
  std::vector<Source> sources;                // parallel to State::tensors; aliases unused
  std::vector<std::string> names;             // of the sources, for messages
  std::string tree;                           // source of kTreeSource
  std::uint64_t seed = 0;                     // of the fingerprints
  bool whole_fingerprint = false;             // paranoid
  std::vector<CopiesOfDevice> device_copies;  // destroyed before on_done
  // Called from copy threads, in any order, several at once. Must not block for long.
  std::function<void(FullSlab)> on_slab;
  // With device copies only. Called at most once, from a copy thread, before on_done: host memory has been copied, and
  // every device copy has been queued before its point. Not called for a paranoid job, whose device tensors must stand
  // still until on_done.
  std::function<void(std::vector<DevicePoint>)> on_queued;
  // Called once, from a copy thread or the copy waiter, after the last read of any source and the last on_slab. Success
  // means staged. Errors: kTorn with the tensor's name in Error::tensor, kTimeout, kClosed, or an error of a device.
  std::function<void(Status)> on_done;
};

struct StagerOptions {
  unsigned copy_threads = 2;
  // What may be outstanding on each device before queue_all(); 0 bytes: no limit.
  std::uint64_t copies_ahead_bytes = 64u << 20;
  std::uint64_t copies_ahead_operations = 256;
  std::chrono::milliseconds stall_timeout{60'000};
  // Slabs that a device copies into should be pinned first. Until the fence, `pin` is not called again before a pause
  // of `pin_pauses` times as long as the last call took. None: all slabs are fit for copies.
  std::function<bool(int slab)> needs_pin = {};
  std::function<void(int slab, std::span<std::byte> memory)> pin = {};
  int pin_pauses = 0;
};

class Stager {
 public:
  Stager(Pool& pool, StagerOptions options);
  ~Stager();  // calls stop()

  // Ends jobs that are not staged with kClosed, waits for copies that a device has under way, and joins the threads.
  // Afterwards cancel() has no effect, and a job that is enqueued ends at once with kClosed. Idempotent.
  void stop();

  // Starts sw-copy-wait, unless it runs. A caller that holds a lock which on_done takes calls it before it takes that
  // lock, for a job with device copies: if the thread cannot be started, enqueue() calls on_done itself.
  [[nodiscard]] Status start_copy_waiter();
  void enqueue(std::shared_ptr<StageJob> job);
  // The fence of this job was called. Its copies, and those of the jobs before it, are queued without a limit from now
  // on, as far as the pool reaches. Does not wait. No effect if they are all queued already.
  void queue_all(const std::shared_ptr<StageJob>& job);
  // Gives a job up: no further chunk is begun, and on_done(error) follows. No effect if it is staged already.
  void cancel(const std::shared_ptr<StageJob>& job, Error error);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace slackwater
