#include "device/cuda/device_copies.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "device/fingerprint.hpp"

namespace slackwater::cuda {

static_assert(kTensorSampleBytes == kSamples * kSampleBytes);

Status add_sample(const StridedMemory& tensor, std::uint64_t seed, std::byte* to, std::vector<Block>& blocks) {
  const std::uint64_t size = tensor.size_bytes();
  if (size <= kTensorSampleBytes) return add_blocks({&tensor, 0, size, 1, size}, to, blocks);
  if (tensor.contiguous()) return add_blocks(replica_places(tensor, size, seed, kSamples, false), to, blocks);
  const std::uint64_t width = std::min<std::uint64_t>(tensor.item_bytes, kSampleBytes);
  const SamplePlaces places(seed);
  for (std::size_t i = 0; i < kSamples; ++i) {
    const std::byte* const element = places.address(tensor, size, i);
    blocks.push_back({.strided = const_cast<std::byte*>(element) + (i % 2) * (tensor.item_bytes - width),
                      .packed = to + i * kSampleBytes,
                      .width = width});
  }
  return {};
}

CudaDeviceCopies::CudaDeviceCopies(const DeviceParts& parts, std::shared_ptr<StreamEvent> produced,
                                   std::span<const StridedMemory* const> guarded, std::uint64_t seed)
    : parts_(parts),
      produced_(std::move(produced)),
      guarded_(guarded.begin(), guarded.end()),
      seed_(seed),
      sampled_twice_(guarded.size(), false) {}

Result<std::unique_ptr<DeviceCopies>> CudaDeviceCopies::begin(const DeviceParts& parts,
                                                              const std::shared_ptr<Event>& produced,
                                                              std::span<const StridedMemory* const> guarded,
                                                              std::uint64_t seed) {
  auto point = std::dynamic_pointer_cast<StreamEvent>(produced);
  if (produced != nullptr && point == nullptr) {
    return fail(ErrorKind::kInternal,
                fmt::format("copies of {} cannot wait for an event of another kind of device", parts.context.name()));
  }
  const Scope scope(parts.context);
  SW_TRY(scope.status());
  std::unique_ptr<CudaDeviceCopies> copies(new CudaDeviceCopies(parts, std::move(point), guarded, seed));
  SW_TRY(copies->queue_first_samples());
  return copies;
}

Status CudaDeviceCopies::queue_first_samples() {
  if (guarded_.empty()) return {};
  SW_ASSIGN(samples_, parts_.sample_memory.take(guarded_.size() * 2 * kTensorSampleBytes));
  // A sample may be shorter than its slot. The rest must be equal in both slots.
  std::memset(samples_.data(), 0, guarded_.size() * 2 * kTensorSampleBytes);
  std::vector<Block> blocks;
  blocks.reserve(guarded_.size());
  for (std::uint32_t guard = 0; guard < guarded_.size(); ++guard) {
    SW_TRY(add_sample(*guarded_[guard], seed_, first_sample(guard), blocks));
  }
  if (produced_ != nullptr) SW_TRY(parts_.sample_stream.wait_for(*produced_));
  // In turns, as the copies: thousands of samples back to back would hold up a copy of the trainer for milliseconds.
  SW_TRY(parts_.sample_stream.queue_blocks(blocks, CopyPace::kInTurns));
  SW_ASSIGN(first_sampled_, parts_.sample_stream.record());
  return {};
}

CudaDeviceCopies::~CudaDeviceCopies() {
  // Somebody else may get the slabs and sample slots next, so nothing may still be written into them. A lost device
  // returns an error at once and writes nothing more.
  const Scope scope(parts_.context);
  if (samples_.data() != nullptr && (first_sampled_ == nullptr || !first_sampled_->wait().has_value())) {
    parts_.sample_stream.drain();
  }
  const std::lock_guard lock(mutex_);
  if (queued_ > 0 && (recorded_ < queued_ || !last_event_->wait().has_value())) {
    parts_.copy_stream.drain();
  }
}

template <class Queue>
Status CudaDeviceCopies::on_copy_stream(Queue queue) {
  const Scope scope(parts_.context);
  SW_TRY(scope.status());
  {
    const std::lock_guard lock(mutex_);
    // Not earlier, because the stream is shared: copies of an earlier snapshot must not wait for this one's producer.
    // If there are first samples, copies come after them. An update that waits for the copies then waits for the
    // samples, too.
    const StreamEvent* const ready = first_sampled_ != nullptr ? first_sampled_.get() : produced_.get();
    if (!after_producer_ && ready != nullptr) SW_TRY(parts_.copy_stream.wait_for(*ready));
    after_producer_ = true;
  }
  Status status = queue();
  const std::lock_guard lock(mutex_);
  ++queued_;  // even after an error, because some copies may run
  return status;
}

Status CudaDeviceCopies::queue_copies(std::span<const CopyPiece> pieces) {
  return on_copy_stream([&] { return parts_.copy_stream.queue(pieces, pace_); });
}

Status CudaDeviceCopies::queue_second_sample(std::uint32_t guard) {
  SW_TRY(check_guard(guard));
  std::vector<Block> blocks;
  SW_TRY(add_sample(*guarded_[guard], seed_, second_sample(guard), blocks));
  SW_TRY(on_copy_stream([&] { return parts_.copy_stream.queue_blocks(blocks, pace_); }));
  const std::lock_guard lock(mutex_);
  sampled_twice_[guard] = true;
  return {};
}

Result<std::shared_ptr<Event>> CudaDeviceCopies::record_event() {
  const Scope scope(parts_.context);
  SW_TRY(scope.status());
  std::uint64_t queued = 0;
  {
    const std::lock_guard lock(mutex_);
    queued = queued_;
  }
  SW_ASSIGN(std::shared_ptr<StreamEvent> point, parts_.copy_stream.record());
  const std::lock_guard lock(mutex_);
  if (queued >= recorded_) {
    recorded_ = queued;
    last_event_ = point;
  }
  return point;
}

Result<bool> CudaDeviceCopies::unchanged(std::uint32_t guard) {
  SW_TRY(check_guard(guard));
  {
    const std::lock_guard lock(mutex_);
    if (!sampled_twice_[guard]) {
      return fail(ErrorKind::kInternal, fmt::format("guarded tensor {} has not been sampled a second time", guard));
    }
  }
  SW_TRY(first_sampled_->wait());
  return std::memcmp(first_sample(guard), second_sample(guard), kTensorSampleBytes) == 0;
}

Status CudaDeviceCopies::check_guard(std::uint32_t guard) const {
  if (guard < guarded_.size()) return {};
  return fail(ErrorKind::kInternal, fmt::format("there is no guarded tensor {}; there are {}", guard, guarded_.size()));
}

}  // namespace slackwater::cuda
