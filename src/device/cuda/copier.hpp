// Copier: queues copies on a stream with as few driver calls as possible. A driver of 12.8 or later takes many runs of
// bytes in one batch call. For older ones, neighbours are merged. Rows of strided tensors become 2D copies.
// Owner: CudaDevice. Thread rule: thread-safe; callers are inside a Scope. Lifetime: the Context outlives it.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <vector>

#include "device/cuda/blocks.hpp"
#include "device/cuda/context.hpp"
#include "device/cuda/objects.hpp"
#include "device/cuda/submission_limit.hpp"
#include "device/device.hpp"

namespace slackwater::cuda {

enum class CopyDirection : std::uint8_t {
  kToHost,    // tensor -> packed host memory
  kFromHost,  // packed host memory -> tensor
};

// Copies in one batch. The driver documents no limit. This one bounds our memory, how long one call holds the driver's
// lock, and how long the trainer's copies wait behind one batch.
inline constexpr std::size_t kMaxBatch = 1024;

class Copier {
 public:
  explicit Copier(const Context& context);
  // Keeps few enough operations pending on a stream of our own. Call it before the first copy on that stream.
  void limit(EventPool& events, CUstream stream) { limits_.emplace_back(events, stream); }
  // Waits, if too many operations are pending on a limited stream. For operations besides the copies.
  [[nodiscard]] Status admit(CUstream stream);
  // At most how many operations so many runs take.
  [[nodiscard]] std::uint64_t operations(std::uint64_t runs) const {
    return batches_.load(std::memory_order_relaxed) ? (runs + kMaxBatch - 1) / kMaxBatch : runs;
  }

  // On return the copies are queued, not done. After an error, some of them may be queued and may run.
  // Packed sides must not overlap, because the copies of one call run in any order. Only copies into the same strided
  // tensor keep theirs.
  [[nodiscard]] Status queue(std::span<const CopyPiece> pieces, CopyDirection direction, CUstream stream);
  [[nodiscard]] Status queue_blocks(std::span<const Block> blocks, CopyDirection direction, CUstream stream);

 private:
  class Submission;
  [[nodiscard]] CUresult copy_run(const Block& run, CopyDirection direction, CUstream stream) const;
  [[nodiscard]] CUresult copy_rows(const Block& block, CopyDirection direction, CUstream stream) const;
  [[nodiscard]] CUresult copy_batch(std::span<const Block> runs, CopyDirection direction, CUstream stream) const;
  [[nodiscard]] Status queue_block(const Block& block, CopyDirection direction, CUstream stream);
  [[nodiscard]] Status queue_runs(std::span<const Block> runs, CopyDirection direction, CUstream stream);
  [[nodiscard]] Status queue_merged(std::span<const Block> runs, CopyDirection direction, CUstream stream);

  const Context& context_;
  const std::uint64_t max_pitch_;
  std::deque<SubmissionLimit> limits_;  // its elements are constant once copies are queued
  std::atomic<bool> batches_;           // the driver has a batch call and has not refused it
};

}  // namespace slackwater::cuda
