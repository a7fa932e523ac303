// Copier: queues copies on a stream with as few calls as the driver allows: many runs of bytes in one batch call where it has one
// (12.8 and later), neighbours merged where not, rows of strided tensors as 2D copies.
// Owner: CudaDevice. Thread rule: thread-safe; callers are inside a Scope. Lifetime: the Context outlives it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "device/cuda_blocks.hpp"
#include "device/cuda_context.hpp"
#include "device/device.hpp"

namespace slackwater::cuda {

enum class CopyDirection : std::uint8_t {
  kToHost,    // tensor -> packed host memory
  kFromHost,  // packed host memory -> tensor
  kWithin,    // tensor -> packed memory of the same device (CopyPiece::host is an address there)
};

class Copier {
 public:
  explicit Copier(const Context& context);

  // Queued on return, not done. After an error some of the copies may be queued, and may run.
  // Packed sides must not overlap: copies of a call run in any order, but for those into one strided tensor.
  [[nodiscard]] Status queue(std::span<const CopyPiece> pieces, CopyDirection direction, CUstream stream);
  [[nodiscard]] Status queue_blocks(std::span<const Block> blocks, CopyDirection direction, CUstream stream);

 private:
  class Submission;
  [[nodiscard]] CUresult copy_run(const Block& run, CopyDirection direction, CUstream stream) const;
  [[nodiscard]] CUresult copy_rows(const Block& block, CopyDirection direction, CUstream stream) const;
  [[nodiscard]] CUresult copy_batch(std::span<const Block> runs, CopyDirection direction, CUstream stream) const;
  [[nodiscard]] Status queue_block(const Block& block, CopyDirection direction, CUstream stream) const;
  [[nodiscard]] Status queue_runs(std::span<const Block> runs, CopyDirection direction, CUstream stream);
  [[nodiscard]] Status queue_merged(std::span<const Block> runs, CopyDirection direction, CUstream stream) const;

  const Context& context_;
  const std::uint64_t max_pitch_;
  std::atomic<bool> batches_;  // the driver has a batch call, and has not refused it
};

}  // namespace slackwater::cuda
