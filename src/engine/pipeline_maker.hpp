// PipelineMaker: makes the engine's pipeline as soon as the size of its pool is known: at open, in prepare(), in
// restore(), or at the first save. The slabs are then touched in the background. Touching fresh memory is slow, so the
// earlier this begins, the less the first fence waits.
// Owned by Engine::Impl. Thread rule: thread-safe; for_save() belongs to sw-plan. Lifetime: ends before EngineShared.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>

#include "engine/engine_shared.hpp"
#include "layout/file_layout.hpp"
#include "slackwater/tensor.hpp"

namespace slackwater {

// pool=auto with a memory tier, all in slabs of one rank: half of what is available. Memory of an earlier trainer that
// is attached is not available any more, but may be used again: it is counted, as far as it goes. Without that, each
// restart would have half the pool of the last.
[[nodiscard]] std::uint64_t slabs_in_half(std::uint64_t wanted, std::uint64_t available, std::uint64_t attached);

class PipelineMaker {
 public:
  explicit PipelineMaker(EngineShared& shared) : shared_(shared) {}

  // If this process already uses a GPU and the size of the pool is set, the pool is made for that GPU.
  void at_open();
  // Engine::prepare().
  [[nodiscard]] Status prepare(State state);
  // A restore places these tensors, so the state that is saved next has them. Trouble is left to that save.
  void foresee(std::span<const Target> targets);
  // The pipeline, made if there is none. The first state decides: a foreseen pool is made again if it is automatic and
  // was made for a smaller state, or if its memory is far from the GPU.
  [[nodiscard]] Result<std::shared_ptr<Pipeline>> for_save(const State& state, const SnapshotLayout& layout);
  // True once every slab is touched. False after `timeout`, or if there is no pool.
  [[nodiscard]] Result<bool> wait_touched(std::chrono::milliseconds timeout);

 private:
  [[nodiscard]] std::uint64_t slabs_for(std::uint64_t state_slabs) const;
  // False: the keeper's memory must not be made again yet.
  [[nodiscard]] bool can_prepare(std::uint64_t slabs) const;
  // Whether the memory of a foreseen pool is on other NUMA nodes than that of this device.
  [[nodiscard]] bool far_from(std::optional<int> device, Pipeline& pipeline) const;
  // Both need mutex_.
  [[nodiscard]] Result<std::shared_ptr<Pipeline>> make(std::uint64_t slabs, std::optional<int> device, bool foreseen);
  void drop(const std::shared_ptr<Pipeline>& pipeline);

  EngineShared& shared_;
  const Options& options_ = shared_.options;

  std::mutex mutex_;  // one pipeline is made at a time; the lock of EngineShared::pipeline may be taken under it
};

}  // namespace slackwater
