// CudaDevice: an AsyncDevice on the CUDA driver. It has five streams of its own, all of the lowest priority: two for
// the copies of snapshots (CopyStream), one for samples, and one per direction for synchronous copies. So synchronous
// copies never queue behind a snapshot. Synchronous copies and fingerprints do not wait for the trainer's streams. If
// you need that, wait for a record_event() first.
// Owner: Devices. Thread rule: thread-safe. Lifetime: outlives its events, early copies and device copies. Never
// used or destroyed in a forked child.
#pragma once

#include <memory>

#include "device/async_device.hpp"
#include "device/cuda/context.hpp"
#include "device/cuda/copier.hpp"
#include "device/cuda/copy_stream.hpp"
#include "device/cuda/objects.hpp"

namespace slackwater::cuda {

class CudaDevice final : public AsyncDevice {
 public:
  // kUnsupported if there is no such device.
  // `copy_turn_bytes`: see CopyStream.
  [[nodiscard]] static Result<std::unique_ptr<CudaDevice>> open(std::shared_ptr<const Driver> driver, int ordinal,
                                                                std::uint64_t copy_turn_bytes = kCopyTurnBytes);

  [[nodiscard]] const Context& context() const { return *context_; }

  Status copy_to_host(std::span<const CopyPiece> pieces) override;
  Status copy_from_host(std::span<const CopyPiece> pieces) override;
  Result<std::uint64_t> fingerprint(const StridedMemory& tensor, std::uint64_t seed, bool whole) override;
  Result<std::vector<std::uint64_t>> whole_fingerprints(std::span<const StridedMemory* const> tensors) override;

  std::string_view name() const override { return context_->name(); }
  int ordinal() const override { return context_->ordinal(); }
  int numa_node() const override { return numa_node_; }
  Result<CaptureStatus> capture_status(StreamHandle stream) override;
  Result<std::shared_ptr<Event>> record_event(std::span<const StreamHandle> streams) override;
  Result<std::unique_ptr<EarlyCopies>> copy_early(std::span<const StridedMemory> tensors, StreamHandle stream) override;
  Result<std::unique_ptr<PendingSamples>> sample(std::span<const ReplicaPlaces> places, StreamHandle stream) override;
  Result<std::unique_ptr<DeviceCopies>> begin(std::shared_ptr<Event> produced,
                                              std::span<const StridedMemory* const> guarded,
                                              std::uint64_t seed) override;
  Status stream_wait(StreamHandle stream, const Event& event) override;

 private:
  CudaDevice(std::unique_ptr<Context> context, std::uint64_t copy_turn_bytes);
  // Makes what the first save() would otherwise have to make: streams, events, and memory for early copies.
  [[nodiscard]] Status prepare();
  // Inside a Scope. On return none of the copies is running, even after an error.
  [[nodiscard]] Status copy_and_wait(std::span<const CopyPiece> pieces, CopyDirection direction, const Stream& stream);

  // Constant after open(). The order matters: the streams are destroyed first, the context last.
  const std::unique_ptr<Context> context_;
  const int numa_node_;
  EventPool events_;
  MemoryPool sample_memory_;
  MemoryPool scratch_;
  MemoryPool early_memory_;
  Copier copier_;
  CopyStream copies_;
  CopyStream samples_;
  Stream early_copies_;
  Stream to_host_;
  Stream from_host_;
};

}  // namespace slackwater::cuda
