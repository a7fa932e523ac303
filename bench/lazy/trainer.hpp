// Trainer: one GPU of a training run, on the simulated device. Forward and backward are timed work on a stream; the
// update is timed work that rewrites every byte of the state, so that a copy it overtakes shows.
// Thread rule: one thread, inside a cuda::Scope of the GPU's context. Lifetime: the GPU outlives it; nobody may be
// copying from it when it is destroyed.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bench/lazy/simulated_gpu.hpp"
#include "slackwater/error.hpp"
#include "slackwater/tensor.hpp"

namespace slackwater::bench {

class Trainer {
 public:
  // About that many bytes, at 14 a parameter: a bf16 weight, a float32 master copy, two float32 moments.
  [[nodiscard]] static Result<std::unique_ptr<Trainer>> create(const SimulatedGpu& gpu, std::uint64_t state_bytes);
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  [[nodiscard]] std::uint64_t state_bytes() const { return state_bytes_; }  // of the tensors
  [[nodiscard]] std::uint64_t version() const { return version_; }          // updates queued so far
  [[nodiscard]] State state() const;
  [[nodiscard]] StreamRef stream() const {
    return {.device = gpu_.ordinal(), .handle = reinterpret_cast<std::uintptr_t>(stream_)};
  }

  // The tensors lie in one block of device memory, with small gaps between them.
  [[nodiscard]] cuda::CUdeviceptr block() const { return block_; }
  [[nodiscard]] std::uint64_t block_bytes() const { return block_bytes_; }

  [[nodiscard]] Status queue_compute(std::chrono::nanoseconds duration);
  [[nodiscard]] Status queue_update(std::chrono::nanoseconds duration);
  [[nodiscard]] Status wait_for_update();  // sleeps
  // Of the iteration that wait_for_update() returned for, in seconds of the simulator's clock.
  [[nodiscard]] double update_held_seconds() const;  // from the end of backward to the start of the update
  [[nodiscard]] double update_ended_seconds() const;

  // kCorrupt unless `bytes` are those of the block from `offset` on (a multiple of 8), as the update number `version`
  // left them.
  [[nodiscard]] Status compare(std::span<const std::byte> bytes, std::uint64_t offset, std::uint64_t version) const;
  // The same for a tensor of state(), by its place there.
  [[nodiscard]] Status compare_tensor(std::size_t index, std::span<const std::byte> bytes, std::uint64_t version) const;
  // The same for all tensors of a checkpoint, read back from storage.
  [[nodiscard]] Status compare_checkpoint(const std::string& directory, std::uint64_t step,
                                          std::uint64_t version) const;

 private:
  struct Piece {
    std::string name;
    DType dtype;
    std::uint64_t offset;  // in the block
    std::uint64_t size_bytes;
  };

  explicit Trainer(const SimulatedGpu& gpu) : gpu_(gpu) {}
  [[nodiscard]] Status open(std::uint64_t state_bytes);
  static void rewrite(void* self, int phase);

  const SimulatedGpu& gpu_;
  std::vector<Piece> pieces_;
  std::uint64_t state_bytes_ = 0;
  std::uint64_t block_bytes_ = 0;
  std::uint64_t version_ = 0;
  cuda::CUdeviceptr block_ = 0;
  cuda::CUstream stream_ = nullptr;
  cuda::CUevent computed_ = nullptr;
  cuda::CUevent update_begun_ = nullptr;
  cuda::CUevent updated_ = nullptr;
  std::span<std::uint64_t> words_;  // the block, as kernels see it
};

}  // namespace slackwater::bench
