// CudaDeviceCopies: the copies of one snapshot from one device, and the two samples of the torn-capture guard.
//
// What a sample covers:
// - all of a tensor of at most 128 bytes
// - 16 times 8 bytes of a larger contiguous tensor, a sixteenth of it apart, starting at a place that the seed chooses.
//   That takes one 2D copy, and no contiguous change of more than a sixteenth goes unseen.
// - 16 elements of a strided tensor, one in each sixteenth. Of elements over 8 bytes, the first and the last 8 bytes in
//   turn.
// First samples run on a stream of their own, after `produced` but not after the copies of earlier snapshots. Second
// samples run after the tensor's copies.
// Owner: the stager's job. Thread rule: thread-safe. Lifetime: the device and the guarded tensors outlive it. The
// destructor waits for its copies.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "device/async_device.hpp"
#include "device/cuda/blocks.hpp"
#include "device/cuda/copy_stream.hpp"
#include "device/cuda/objects.hpp"

namespace slackwater::cuda {

inline constexpr std::uint64_t kTensorSampleBytes = 128;

// Adds the blocks that copy one sample of the tensor to `to`, which has kTensorSampleBytes.
[[nodiscard]] Status add_sample(const StridedMemory& tensor, std::uint64_t seed, std::byte* to,
                                std::vector<Block>& blocks);

// The parts of a device that its copies use.
struct DeviceParts {
  const Context& context;
  MemoryPool& sample_memory;  // pinned
  CopyStream& copy_stream;
  CopyStream& sample_stream;
};

class CudaDeviceCopies final : public DeviceCopies {
 public:
  // Queues the first samples. `produced` may be null if there is nothing to wait for.
  [[nodiscard]] static Result<std::unique_ptr<DeviceCopies>> begin(const DeviceParts& parts,
                                                                   const std::shared_ptr<Event>& produced,
                                                                   std::span<const StridedMemory* const> guarded,
                                                                   std::uint64_t seed);
  ~CudaDeviceCopies() override;

  Status queue_copies(std::span<const CopyPiece> pieces) override;
  std::uint64_t operations(std::uint64_t copies, std::uint64_t size_bytes) const override {
    return parts_.copy_stream.operations(copies, size_bytes);
  }
  void at_once() override { pace_.store(CopyPace::kAtOnce, std::memory_order_relaxed); }
  Status queue_second_sample(std::uint32_t guard) override;
  Result<std::shared_ptr<Event>> record_event() override;
  Result<bool> unchanged(std::uint32_t guard) override;

 private:
  CudaDeviceCopies(const DeviceParts& parts, std::shared_ptr<StreamEvent> produced,
                   std::span<const StridedMemory* const> guarded, std::uint64_t seed);
  [[nodiscard]] Status queue_first_samples();
  // Calls `queue`, which queues copies on the copy stream, and orders them after the producer.
  template <class Queue>
  [[nodiscard]] Status on_copy_stream(Queue queue);
  [[nodiscard]] Status check_guard(std::uint32_t guard) const;
  [[nodiscard]] std::byte* first_sample(std::uint32_t guard) const {
    return samples_.data() + 2 * kTensorSampleBytes * guard;
  }
  [[nodiscard]] std::byte* second_sample(std::uint32_t guard) const { return first_sample(guard) + kTensorSampleBytes; }

  // Constant after begin().
  const DeviceParts parts_;
  const std::shared_ptr<StreamEvent> produced_;
  const std::vector<const StridedMemory*> guarded_;
  const std::uint64_t seed_;
  PooledMemory samples_;
  std::shared_ptr<StreamEvent> first_sampled_;  // after the first samples; null if there are none

  std::atomic<CopyPace> pace_ = CopyPace::kInTurns;
  std::mutex mutex_;
  bool after_producer_ = false;              // guarded by mutex_: the copy stream waits for `produced`
  std::uint64_t queued_ = 0;                 // guarded by mutex_: number of calls that have queued copies
  std::uint64_t recorded_ = 0;               // guarded by mutex_: how many of those came before last_event_
  std::shared_ptr<StreamEvent> last_event_;  // guarded by mutex_
  std::vector<bool> sampled_twice_;          // guarded by mutex_
};

}  // namespace slackwater::cuda
