// CudaDevice: AsyncDevice over the CUDA driver. Streams of its own, all of the lowest priority: copies of snapshots, looks of the guard, and one a direction
// for the synchronous copies, which then never queue behind a snapshot.
// Synchronous copies and fingerprints do not wait for the trainer's streams: who needs that waits for a mark() first.
// Owner: Devices. Thread rule: thread-safe. Lifetime: outlives its events, clones and passages. Never used or destroyed in a forked child.
#pragma once

#include <memory>

#include "device/async_device.hpp"
#include "device/cuda_context.hpp"
#include "device/cuda_copier.hpp"
#include "device/cuda_objects.hpp"

namespace slackwater::cuda {

class CudaDevice final : public AsyncDevice {
 public:
  // kUnsupported if there is no such device.
  [[nodiscard]] static Result<std::unique_ptr<CudaDevice>> open(std::shared_ptr<const Driver> driver, int ordinal);

  [[nodiscard]] const Context& context() const { return *context_; }

  Status copy_to_host(std::span<const CopyPiece> pieces) override;
  Status copy_from_host(std::span<const CopyPiece> pieces) override;
  Result<std::uint64_t> fingerprint(const StridedMemory& tensor, std::uint64_t seed, bool whole) override;

  std::string_view name() const override { return context_->name(); }
  int ordinal() const override { return context_->ordinal(); }
  int numa_node() const override { return numa_node_; }
  Result<bool> capturing(StreamHandle stream) override;
  Result<std::shared_ptr<Event>> mark(std::span<const StreamHandle> streams) override;
  Result<std::unique_ptr<Clones>> clone(std::span<const StridedMemory> tensors, StreamHandle stream) override;
  Result<std::unique_ptr<Looks>> look(std::span<const ReplicaPlaces> places, StreamHandle stream) override;
  Result<std::unique_ptr<Passage>> begin(std::shared_ptr<Event> produced, std::span<const StridedMemory* const> guarded,
                                         std::uint64_t seed) override;
  Status hold(StreamHandle stream, const Event& event) override;

 private:
  explicit CudaDevice(std::unique_ptr<Context> context);
  [[nodiscard]] Status open_streams();
  // Inside a Scope. On return nothing of it is running, whatever the answer.
  [[nodiscard]] Status copy_and_wait(std::span<const CopyPiece> pieces, CopyDirection direction, const Stream& stream);
  [[nodiscard]] Result<std::uint64_t> whole_fingerprint(const StridedMemory& tensor, std::uint64_t size_bytes);

  // Constant after open(). The order matters: the context goes last, the streams first.
  const std::unique_ptr<Context> context_;
  const int numa_node_;
  EventPool events_;
  MemoryPool look_memory_;
  MemoryPool scratch_;
  MemoryPool clone_memory_;
  Copier copier_;
  Stream copies_;
  Stream looks_;
  Stream to_host_;
  Stream from_host_;
};

}  // namespace slackwater::cuda
