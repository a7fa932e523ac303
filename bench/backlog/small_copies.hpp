// SmallCopies: the trainer's own copies of 4 bytes to pinned memory, as loss.item() makes them, on a stream of their
// own. Each is waited for, and timed on the simulator's clock.
// Thread rule: one thread, inside a cuda::Scope of the GPU's context. Lifetime: the GPU outlives it.
#pragma once

#include <memory>
#include <optional>

#include "bench/lazy/simulated_gpu.hpp"
#include "slackwater/error.hpp"

namespace slackwater::bench {

class SmallCopies {
 public:
  [[nodiscard]] static Result<std::unique_ptr<SmallCopies>> create(const SimulatedGpu& gpu);
  ~SmallCopies();
  SmallCopies(const SmallCopies&) = delete;
  SmallCopies& operator=(const SmallCopies&) = delete;

  // Seconds from the call until the copy is over on the device. Nothing if this machine held up the calls, because the
  // figure would then be the machine's.
  [[nodiscard]] Result<std::optional<double>> copy();
  // The same while nothing else is copied. Copies are stalled until all calls are made: a copy on an idle device is
  // over before its end can be marked.
  [[nodiscard]] Result<std::optional<double>> copy_when_idle();

 private:
  explicit SmallCopies(const SimulatedGpu& gpu) : gpu_(gpu) {}
  [[nodiscard]] Status open();

  const SimulatedGpu& gpu_;
  cuda::CUstream stream_ = nullptr;
  cuda::CUevent over_ = nullptr;
  cuda::CUdeviceptr word_ = 0;
  void* host_ = nullptr;
};

}  // namespace slackwater::bench
