#include "device/cuda_passage.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "device/fingerprint.hpp"

namespace slackwater::cuda {

static_assert(kLookBytes == kSamples * kSampleBytes);

Status add_look(const StridedMemory& tensor, std::uint64_t seed, std::byte* to, std::vector<Block>& blocks) {
  const std::uint64_t size = tensor.size_bytes();
  if (size <= kLookBytes) {
    return for_each_block({&tensor, 0, size, to}, std::numeric_limits<std::int32_t>::max(), [&](const Block& block) {
      blocks.push_back(block);
      return Status();
    });
  }
  if (tensor.contiguous()) {
    const std::uint64_t pitch = size / kSamples;
    const std::uint64_t starts = size - (kSamples - 1) * pitch - kSampleBytes + 1;
    blocks.push_back({.strided = tensor.data + random_below(seed, starts),
                      .packed = to,
                      .width = kSampleBytes,
                      .rows = kSamples,
                      .pitch = pitch,
                      .packed_pitch = kSampleBytes});
    return {};
  }
  const std::uint64_t width = std::min<std::uint64_t>(tensor.item_bytes, kSampleBytes);
  for (std::size_t i = 0; i < kSamples; ++i) {
    const std::byte* const element = sample_address(tensor, size, seed, i);
    blocks.push_back({.strided = const_cast<std::byte*>(element) + (i % 2) * (tensor.item_bytes - width),
                      .packed = to + i * kSampleBytes,
                      .width = width});
  }
  return {};
}

CudaPassage::CudaPassage(const PassageParts& parts, std::shared_ptr<StreamEvent> produced,
                         std::span<const StridedMemory* const> guarded, std::uint64_t seed)
    : parts_(parts),
      produced_(std::move(produced)),
      guarded_(guarded.begin(), guarded.end()),
      seed_(seed),
      looked_twice_(guarded.size(), false) {}

Result<std::unique_ptr<Passage>> CudaPassage::begin(const PassageParts& parts, const std::shared_ptr<Event>& produced,
                                                    std::span<const StridedMemory* const> guarded, std::uint64_t seed) {
  auto point = std::dynamic_pointer_cast<StreamEvent>(produced);
  if (produced != nullptr && point == nullptr) {
    return fail(ErrorKind::kInternal,
                fmt::format("a passage of {} was given the event of a device of another kind", parts.context.name()));
  }
  const Scope scope(parts.context);
  SW_TRY(scope.status());
  std::unique_ptr<CudaPassage> passage(new CudaPassage(parts, std::move(point), guarded, seed));
  SW_TRY(passage->queue_first_looks());
  return passage;
}

Status CudaPassage::queue_first_looks() {
  if (guarded_.empty()) return {};
  SW_ASSIGN(looks_, parts_.look_memory.take(guarded_.size() * 2 * kLookBytes));
  // A look may be shorter than its place; what lies behind must be equal in both.
  std::memset(looks_.data(), 0, guarded_.size() * 2 * kLookBytes);
  std::vector<Block> blocks;
  blocks.reserve(guarded_.size());
  for (std::uint32_t guard = 0; guard < guarded_.size(); ++guard) {
    SW_TRY(add_look(*guarded_[guard], seed_, first_look(guard), blocks));
  }
  if (produced_ != nullptr) SW_TRY(produced_->hold(parts_.context, parts_.looks));
  SW_TRY(parts_.copier.queue_blocks(blocks, CopyDirection::kToHost, parts_.looks));
  SW_ASSIGN(looked_, StreamEvent::record(parts_.events, std::array{parts_.looks}));
  return {};
}

CudaPassage::~CudaPassage() {
  // Slabs and looks may go to somebody else after this: nothing may still be written into them. A lost device answers with an
  // error at once, and writes no more.
  const Scope scope(parts_.context);
  if (looks_.data() != nullptr && (looked_ == nullptr || !looked_->wait().has_value())) {
    (void)settle(parts_.events, parts_.looks);
  }
  const std::lock_guard lock(mutex_);
  if (queued_ > 0 && (marked_ < queued_ || !last_mark_->wait().has_value())) {
    (void)settle(parts_.events, parts_.copies);
  }
}

template <class Queue>
Status CudaPassage::on_copy_stream(Queue queue) {
  const Scope scope(parts_.context);
  SW_TRY(scope.status());
  {
    const std::lock_guard lock(mutex_);
    // Not earlier than this: the stream is shared, and copies of an earlier snapshot must not wait for this one's producer.
    // Behind the first looks, where there are any: what waits for the copies, an update, must not come before those either.
    const StreamEvent* const ready = looked_ != nullptr ? looked_.get() : produced_.get();
    if (!behind_producer_ && ready != nullptr) SW_TRY(ready->hold(parts_.context, parts_.copies));
    behind_producer_ = true;
  }
  Status status = queue();
  const std::lock_guard lock(mutex_);
  ++queued_;  // after an error too: some of it may run
  return status;
}

Status CudaPassage::queue_copies(std::span<const CopyPiece> pieces) {
  return on_copy_stream([&] { return parts_.copier.queue(pieces, CopyDirection::kToHost, parts_.copies); });
}

Status CudaPassage::queue_second_look(std::uint32_t guard) {
  SW_TRY(check_guard(guard));
  std::vector<Block> blocks;
  SW_TRY(add_look(*guarded_[guard], seed_, second_look(guard), blocks));
  SW_TRY(on_copy_stream([&] { return parts_.copier.queue_blocks(blocks, CopyDirection::kToHost, parts_.copies); }));
  const std::lock_guard lock(mutex_);
  looked_twice_[guard] = true;
  return {};
}

Result<std::shared_ptr<Event>> CudaPassage::mark() {
  const Scope scope(parts_.context);
  SW_TRY(scope.status());
  std::uint64_t queued = 0;
  {
    const std::lock_guard lock(mutex_);
    queued = queued_;
  }
  SW_ASSIGN(std::shared_ptr<StreamEvent> point, StreamEvent::record(parts_.events, std::array{parts_.copies}));
  const std::lock_guard lock(mutex_);
  if (queued >= marked_) {
    marked_ = queued;
    last_mark_ = point;
  }
  return point;
}

Result<bool> CudaPassage::unchanged(std::uint32_t guard) {
  SW_TRY(check_guard(guard));
  {
    const std::lock_guard lock(mutex_);
    if (!looked_twice_[guard]) {
      return fail(ErrorKind::kInternal, fmt::format("guarded tensor {} has not been looked at a second time", guard));
    }
  }
  SW_TRY(looked_->wait());
  return std::memcmp(first_look(guard), second_look(guard), kLookBytes) == 0;
}

Status CudaPassage::check_guard(std::uint32_t guard) const {
  if (guard < guarded_.size()) return {};
  return fail(ErrorKind::kInternal,
              fmt::format("there is no guarded tensor {}: the passage has {}", guard, guarded_.size()));
}

}  // namespace slackwater::cuda
