#include "device/cuda/device.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/result.hpp"
#include "base/units.hpp"
#include "device/cuda/device_copies.hpp"
#include "device/cuda/whole_fingerprints.hpp"
#include "device/fingerprint.hpp"

namespace slackwater::cuda {
namespace {

constexpr std::uint64_t kEarlyCopyAlignmentBytes = 64;
constexpr std::size_t kFirstEvents = 16;
constexpr std::uint64_t kFirstEarlyBytes = 1u << 20;

// Waits until nothing is written into `memory` any more, before it goes back to its pool. The trainer may have
// destroyed its stream by now, so only the event may be used. If that cannot be waited for, the memory is never used
// again.
void wait_or_retire(StreamEvent& written, PooledMemory& memory) {
  if (!written.wait()) memory.retire();
}

// The copies run on a stream of ours, between the work that is queued on the trainer's stream and what follows there.
// On the trainer's own stream each would be a call, if that is the legacy default stream, which takes no batches, and
// nothing would keep them below what the driver queues.
class CudaEarlyCopies final : public EarlyCopies {
 public:
  CudaEarlyCopies(EventPool& events, PooledMemory memory) : events_(events), memory_(std::move(memory)) {}
  ~CudaEarlyCopies() override {
    if (event_ != nullptr) wait_or_retire(*event_, memory_);
  }

  // Inside a Scope. After an error nothing is written any more, or the memory is not used again.
  Status queue(Copier& copier, std::span<const StridedMemory> tensors, CUstream trainer, CUstream ours) {
    std::vector<CopyPiece> pieces;
    pieces.reserve(tensors.size());
    addresses_.reserve(tensors.size());
    std::byte* to = memory_.data();
    for (const StridedMemory& tensor : tensors) {
      const std::uint64_t size = tensor.size_bytes();
      addresses_.push_back(size == 0 ? nullptr : to);
      if (size > 0) pieces.push_back({&tensor, 0, size, to});
      to += round_up(size, kEarlyCopyAlignmentBytes);
    }
    Status queued = queue_between(copier, pieces, trainer, ours);
    if (!queued && !wait_for_stream(events_, ours)) memory_.retire();
    return queued;
  }

  std::span<const std::byte* const> addresses() const override { return addresses_; }
  const std::shared_ptr<Event>& filled() const override { return filled_; }

 private:
  Status queue_between(Copier& copier, std::span<const CopyPiece> pieces, CUstream trainer, CUstream ours) {
    const Context& context = events_.context();
    SW_ASSIGN(const auto produced, StreamEvent::record(events_, {&trainer, 1}));
    SW_TRY(copier.admit(ours));
    SW_TRY(produced->stream_wait(context, ours));
    SW_TRY(copier.queue(pieces, CopyDirection::kToHost, ours));
    SW_TRY(copier.admit(ours));
    SW_ASSIGN(auto copied, StreamEvent::record(events_, {&ours, 1}));
    SW_TRY(copied->stream_wait(context, trainer));
    event_ = std::move(copied);
    filled_ = event_;
    return {};
  }

  EventPool& events_;
  PooledMemory memory_;
  std::vector<const std::byte*> addresses_;
  std::shared_ptr<StreamEvent> event_;
  std::shared_ptr<Event> filled_;  // the same event
};

// Copies the bytes to the host on the trainer's stream, as early copies are.
class CudaSamples final : public PendingSamples {
 public:
  CudaSamples(EventPool& events, PooledMemory memory) : events_(events), memory_(std::move(memory)) {}
  ~CudaSamples() override {
    if (on_host_ != nullptr) wait_or_retire(*on_host_, memory_);
  }

  // Inside a Scope. After an error nothing is written any more, or the memory is not used again.
  Status queue(Copier& copier, std::span<const ReplicaPlaces> all, CUstream stream) {
    Status queued = queue_copies(copier, all, stream);
    if (!queued && !wait_for_stream(events_, stream)) memory_.retire();  // alive: its call has not returned
    return queued;
  }

  Result<std::vector<std::uint64_t>> digests() override {
    SW_TRY(on_host_->wait());
    std::vector<std::uint64_t> result;
    const std::byte* from = memory_.data();
    for (const std::uint64_t size : sizes_) {
      result.push_back(digest64({from, size}));
      from += size;
    }
    return result;
  }

 private:
  Status queue_copies(Copier& copier, std::span<const ReplicaPlaces> all, CUstream stream) {
    std::vector<Block> blocks;
    blocks.reserve(all.size());
    std::byte* to = memory_.data();
    for (const ReplicaPlaces& places : all) {
      sizes_.push_back(places.width * places.rows);
      SW_TRY(add_blocks(places, to, blocks));
      to += sizes_.back();
    }
    SW_TRY(copier.queue_blocks(blocks, CopyDirection::kToHost, stream));
    SW_ASSIGN(on_host_, StreamEvent::record(events_, {&stream, 1}));
    return {};
  }

  EventPool& events_;
  PooledMemory memory_;
  std::vector<std::uint64_t> sizes_;
  std::shared_ptr<StreamEvent> on_host_;
};

}  // namespace

Result<std::unique_ptr<CudaDevice>> CudaDevice::open(std::shared_ptr<const Driver> driver, int ordinal,
                                                     std::uint64_t copy_turn_bytes) {
  SW_ASSIGN(std::unique_ptr<Context> context, Context::retain(std::move(driver), ordinal));
  std::unique_ptr<CudaDevice> device(new CudaDevice(std::move(context), copy_turn_bytes));
  SW_TRY(device->prepare());
  return device;
}

CudaDevice::CudaDevice(std::unique_ptr<Context> context, std::uint64_t copy_turn_bytes)
    : context_(std::move(context)),
      numa_node_(context_->numa_node()),
      events_(*context_),
      sample_memory_(*context_),
      scratch_(*context_),
      early_memory_(*context_),
      copier_(*context_),
      copies_(events_, copier_, copy_turn_bytes),
      samples_(events_, copier_, copy_turn_bytes, kTurnSamples),
      early_copies_(*context_),
      to_host_(*context_),
      from_host_(*context_) {}

Status CudaDevice::prepare() {
  const Scope scope(*context_);
  SW_TRY(scope.status());
  SW_TRY(copies_.open());
  SW_TRY(samples_.open());
  for (Stream* stream : {&early_copies_, &to_host_, &from_host_}) {
    SW_TRY(stream->open());
    copier_.limit(events_, stream->get());
  }
  SW_TRY(events_.fill(kFirstEvents));
  // Only to have it later. If it cannot be had now, the save() that needs it says so.
  (void)early_memory_.take(kFirstEarlyBytes);
  return {};
}

Status CudaDevice::copy_and_wait(std::span<const CopyPiece> pieces, CopyDirection direction, const Stream& stream) {
  Status queued = copier_.queue(pieces, direction, stream.get());
  Status done = wait_for_stream(events_, stream.get());
  return queued.has_value() ? done : queued;
}

Status CudaDevice::copy_to_host(std::span<const CopyPiece> pieces) {
  const Scope scope(*context_);
  SW_TRY(scope.status());
  return copy_and_wait(pieces, CopyDirection::kToHost, to_host_);
}

Status CudaDevice::copy_from_host(std::span<const CopyPiece> pieces) {
  const Scope scope(*context_);
  SW_TRY(scope.status());
  return copy_and_wait(pieces, CopyDirection::kFromHost, from_host_);
}

Result<std::uint64_t> CudaDevice::fingerprint(const StridedMemory& tensor, std::uint64_t seed, bool whole) {
  const std::uint64_t size = tensor.size_bytes();
  if (whole || size <= kSamples * kSampleBytes) {
    const StridedMemory* const only = &tensor;
    SW_ASSIGN(const std::vector<std::uint64_t> fingerprints, whole_fingerprints({&only, 1}));
    return fingerprints.front();
  }
  const Scope scope(*context_);
  SW_TRY(scope.status());
  const std::size_t place_bytes = tensor.contiguous() ? kSampleBytes : kMaxSampledItemBytes;
  SW_ASSIGN(const PooledMemory scratch, scratch_.take(WholeFingerprints::kMemoryBytes));
  const std::span samples(scratch.data(), kSamples * place_bytes);
  std::ranges::fill(samples, std::byte{0});
  const SamplePlaces places(seed);
  std::array<Block, kSamples> blocks;
  for (std::size_t i = 0; i < kSamples; ++i) {
    blocks[i] = {.strided = const_cast<std::byte*>(places.address(tensor, size, i)),
                 .packed = samples.data() + i * place_bytes,
                 .width = sample_size_bytes(tensor)};
  }
  const Status queued = copier_.queue_blocks(blocks, CopyDirection::kToHost, to_host_.get());
  const Status done = wait_for_stream(events_, to_host_.get());
  SW_TRY(queued);
  SW_TRY(done);
  return digest64(samples);
}

Result<std::vector<std::uint64_t>> CudaDevice::whole_fingerprints(std::span<const StridedMemory* const> tensors) {
  if (tensors.empty()) return std::vector<std::uint64_t>();
  const Scope scope(*context_);
  SW_TRY(scope.status());
  SW_ASSIGN(PooledMemory memory, scratch_.take(WholeFingerprints::kMemoryBytes));
  return WholeFingerprints(events_, copier_, to_host_.get(), std::move(memory)).of(tensors);
}

Result<CaptureStatus> CudaDevice::capture_status(StreamHandle stream) {
  const Scope scope(*context_);
  SW_TRY(scope.status());
  CUstreamCaptureStatus status = CUstreamCaptureStatus::kNone;
  const CUresult code = context_->driver().cuStreamIsCapturing(as_stream(stream), &status);
  if (code == CUresult::kStreamCaptureImplicit) return CaptureStatus::kImplicit;
  SW_TRY(context_->check(code, "cuStreamIsCapturing"));
  return status == CUstreamCaptureStatus::kNone ? CaptureStatus::kNone : CaptureStatus::kCapturing;
}

Result<std::shared_ptr<Event>> CudaDevice::record_event(std::span<const StreamHandle> streams) {
  const Scope scope(*context_);
  SW_TRY(scope.status());
  std::vector<CUstream> handles(streams.size());
  std::ranges::transform(streams, handles.begin(), as_stream);
  SW_ASSIGN(std::shared_ptr<StreamEvent> point, StreamEvent::record(events_, handles));
  return point;
}

Result<std::unique_ptr<EarlyCopies>> CudaDevice::copy_early(std::span<const StridedMemory> tensors,
                                                            StreamHandle stream) {
  const Scope scope(*context_);
  SW_TRY(scope.status());
  std::uint64_t size = 0;
  for (const StridedMemory& tensor : tensors) size += round_up(tensor.size_bytes(), kEarlyCopyAlignmentBytes);
  SW_ASSIGN(PooledMemory memory, early_memory_.take(size));
  auto copies = std::make_unique<CudaEarlyCopies>(events_, std::move(memory));
  SW_TRY(copies->queue(copier_, tensors, as_stream(stream), early_copies_.get()));
  return copies;
}

Result<std::unique_ptr<PendingSamples>> CudaDevice::sample(std::span<const ReplicaPlaces> places, StreamHandle stream) {
  const Scope scope(*context_);
  SW_TRY(scope.status());
  std::uint64_t size = 0;
  for (const ReplicaPlaces& each : places) size += each.width * each.rows;
  SW_ASSIGN(PooledMemory memory, sample_memory_.take(size));
  auto samples = std::make_unique<CudaSamples>(events_, std::move(memory));
  SW_TRY(samples->queue(copier_, places, as_stream(stream)));
  return samples;
}

Result<std::unique_ptr<DeviceCopies>> CudaDevice::begin(std::shared_ptr<Event> produced,
                                                        std::span<const StridedMemory* const> guarded,
                                                        std::uint64_t seed) {
  const DeviceParts parts{*context_, sample_memory_, copies_, samples_};
  return CudaDeviceCopies::begin(parts, produced, guarded, seed);
}

Status CudaDevice::stream_wait(StreamHandle stream, const Event& event) {
  const auto* const point = dynamic_cast<const StreamEvent*>(&event);
  if (point == nullptr) {
    return fail(ErrorKind::kInternal,
                fmt::format("a stream of {} cannot wait for an event of another kind of device", name()));
  }
  const Scope scope(*context_);
  SW_TRY(scope.status());
  return point->stream_wait(*context_, as_stream(stream));
}

}  // namespace slackwater::cuda
