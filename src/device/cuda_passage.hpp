// CudaPassage: the copies of one snapshot from one device, and the two looks of the torn-capture guard.
//
// What a look sees: all of a tensor of at most 128 bytes. Of a larger contiguous one, 16 samples of 8 bytes, a sixteenth of it apart, the first at a
// place the seed chooses: one 2D copy, and no change of more than a sixteenth in one piece goes unseen. Of a strided one, 16 elements, one in each
// sixteenth (of elements over 8 bytes the first and the last 8 bytes by turns).
// First looks run on a stream of their own, behind `produced` but not behind the copies of earlier snapshots; second looks
// behind the tensor's copies.
// Owner: the stager's job. Thread rule: thread-safe. Lifetime: CudaDevice's parts and the guarded tensors outlive it; the destructor waits for its copies.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "device/async_device.hpp"
#include "device/cuda_blocks.hpp"
#include "device/cuda_copier.hpp"
#include "device/cuda_objects.hpp"

namespace slackwater::cuda {

inline constexpr std::uint64_t kLookBytes = 128;

// Adds the blocks that bring one look at the tensor to `to`, of kLookBytes.
[[nodiscard]] Status add_look(const StridedMemory& tensor, std::uint64_t seed, std::byte* to,
                              std::vector<Block>& blocks);

// What a passage uses of its device.
struct PassageParts {
  const Context& context;
  EventPool& events;
  MemoryPool& look_memory;  // pinned
  Copier& copier;
  CUstream copies;
  CUstream looks;
};

class CudaPassage final : public Passage {
 public:
  // Queues the first looks. `produced` may be null: nothing to wait for.
  [[nodiscard]] static Result<std::unique_ptr<Passage>> begin(const PassageParts& parts,
                                                              const std::shared_ptr<Event>& produced,
                                                              std::span<const StridedMemory* const> guarded,
                                                              std::uint64_t seed);
  ~CudaPassage() override;

  Status queue_copies(std::span<const CopyPiece> pieces) override;
  Status queue_second_look(std::uint32_t guard) override;
  Result<std::shared_ptr<Event>> mark() override;
  Result<bool> unchanged(std::uint32_t guard) override;

 private:
  CudaPassage(const PassageParts& parts, std::shared_ptr<StreamEvent> produced,
              std::span<const StridedMemory* const> guarded, std::uint64_t seed);
  [[nodiscard]] Status queue_first_looks();
  // Queues the blocks or pieces that `queue` queues on the stream of copies, behind the producer.
  template <class Queue>
  [[nodiscard]] Status on_copy_stream(Queue queue);
  [[nodiscard]] Status check_guard(std::uint32_t guard) const;
  [[nodiscard]] std::byte* first_look(std::uint32_t guard) const { return looks_.data() + 2 * kLookBytes * guard; }
  [[nodiscard]] std::byte* second_look(std::uint32_t guard) const { return first_look(guard) + kLookBytes; }

  // Constant after begin().
  const PassageParts parts_;
  const std::shared_ptr<StreamEvent> produced_;
  const std::vector<const StridedMemory*> guarded_;
  const std::uint64_t seed_;
  PooledMemory looks_;
  std::shared_ptr<StreamEvent> looked_;  // behind the first looks; null if some of them may have no such point

  std::mutex mutex_;
  bool behind_producer_ = false;            // guarded by mutex_: the stream of copies waits for `produced`
  std::uint64_t queued_ = 0;                // guarded by mutex_: calls that have queued copies and returned
  std::uint64_t marked_ = 0;                // guarded by mutex_: of those, how many last_mark_ is behind
  std::shared_ptr<StreamEvent> last_mark_;  // guarded by mutex_
  std::vector<bool> looked_twice_;          // guarded by mutex_
};

}  // namespace slackwater::cuda
