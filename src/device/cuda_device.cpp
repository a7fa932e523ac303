#include "device/cuda_device.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/result.hpp"
#include "device/cuda_passage.hpp"
#include "device/fingerprint.hpp"

namespace slackwater::cuda {
namespace {

constexpr std::uint64_t kScratchBytes = 1u << 20;
constexpr std::uint64_t kCloneAlignmentBytes = 256;
static_assert(kScratchBytes % kWholeChunkBytes == 0);

// Waits, when destroyed, for the copies that fill it: the next to get the memory may use another stream.
class CudaClones final : public Clones {
 public:
  CudaClones(const Context& context, EventPool& events, PooledMemory memory, CUstream stream)
      : context_(context), events_(events), memory_(std::move(memory)), stream_(stream) {}
  ~CudaClones() override {
    if (memory_.data() == nullptr) return;
    const Scope scope(context_);
    if (filled_ == nullptr || !filled_->wait().has_value()) (void)settle(events_, stream_);
  }

  Status fill(Copier& copier, std::span<const StridedMemory> tensors, std::span<const std::uint64_t> offsets) {
    std::vector<CopyPiece> pieces;
    pieces.reserve(tensors.size());
    addresses_.reserve(tensors.size());
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const std::uint64_t size = tensors[i].size_bytes();
      addresses_.push_back(size == 0 ? nullptr : memory_.data() + offsets[i]);
      if (size > 0) pieces.push_back({&tensors[i], 0, size, addresses_.back()});
    }
    SW_TRY(copier.queue(pieces, CopyDirection::kWithin, stream_));
    SW_ASSIGN(filled_, StreamEvent::record(events_, {&stream_, 1}));
    return {};
  }

  std::span<std::byte* const> addresses() const override { return addresses_; }

 private:
  const Context& context_;
  EventPool& events_;
  PooledMemory memory_;
  CUstream stream_;
  std::vector<std::byte*> addresses_;
  std::shared_ptr<StreamEvent> filled_;
};

// The bytes are gathered on the device, in the order of the trainer's stream, and leave it on another: the trainer's work
// never waits for the bus.
class CudaLooks final : public Looks {
 public:
  CudaLooks(const Context& context, EventPool& events, PooledMemory gathered, PooledMemory memory)
      : context_(context), events_(events), gathered_(std::move(gathered)), memory_(std::move(memory)) {}
  ~CudaLooks() override {
    const Scope scope(context_);
    if (looked_ != nullptr && looked_->wait().has_value()) return;
    for (const CUstream stream : streams_) (void)settle(events_, stream);
  }

  Status queue(Copier& copier, std::span<const ReplicaPlaces> all, CUstream stream, CUstream away) {
    streams_ = {stream, away};
    std::vector<Block> blocks;
    blocks.reserve(all.size());
    const auto add = [&](const Block& block) {
      blocks.push_back(block);
      return Status();
    };
    std::byte* to = gathered_.data();
    for (const ReplicaPlaces& places : all) {
      sizes_.push_back(places.width * places.rows);
      if (places.tensor->contiguous()) {
        blocks.push_back({.strided = places.tensor->data + places.begin,
                          .packed = to,
                          .width = places.width,
                          .rows = places.rows,
                          .pitch = places.pitch,
                          .packed_pitch = places.width});
      } else {
        for (std::uint64_t row = 0; row < places.rows; ++row) {
          const CopyPiece piece{places.tensor, places.begin + row * places.pitch, places.width,
                                to + row * places.width};
          SW_TRY(for_each_block(piece, std::numeric_limits<std::int32_t>::max(), add));
        }
      }
      to += sizes_.back();
    }
    SW_TRY(copier.queue_blocks(blocks, CopyDirection::kWithin, stream));
    SW_ASSIGN(const auto gathered, StreamEvent::record(events_, {&stream, 1}));
    SW_TRY(gathered->hold(context_, away));
    const Block run{.strided = gathered_.data(),
                    .packed = memory_.data(),
                    .width = static_cast<std::uint64_t>(to - gathered_.data())};
    SW_TRY(copier.queue_blocks({&run, 1}, CopyDirection::kToHost, away));
    SW_ASSIGN(looked_, StreamEvent::record(events_, {&away, 1}));
    return {};
  }

  Result<std::vector<std::uint64_t>> digests() override {
    SW_TRY(looked_->wait());
    std::vector<std::uint64_t> result;
    const std::byte* from = memory_.data();
    for (const std::uint64_t size : sizes_) {
      result.push_back(digest_looked_at({from, size}));
      from += size;
    }
    return result;
  }

 private:
  const Context& context_;
  EventPool& events_;
  PooledMemory gathered_;  // on the device
  PooledMemory memory_;    // pinned
  std::vector<CUstream> streams_;
  std::vector<std::uint64_t> sizes_;
  std::shared_ptr<StreamEvent> looked_;
};

}  // namespace

Result<std::unique_ptr<CudaDevice>> CudaDevice::open(std::shared_ptr<const Driver> driver, int ordinal) {
  SW_ASSIGN(std::unique_ptr<Context> context, Context::retain(std::move(driver), ordinal));
  std::unique_ptr<CudaDevice> device(new CudaDevice(std::move(context)));
  SW_TRY(device->open_streams());
  return device;
}

CudaDevice::CudaDevice(std::unique_ptr<Context> context)
    : context_(std::move(context)),
      numa_node_(context_->numa_node()),
      events_(*context_),
      look_memory_(*context_, MemoryKind::kPinnedHost),
      scratch_(*context_, MemoryKind::kPinnedHost),
      clone_memory_(*context_, MemoryKind::kDevice),
      copier_(*context_),
      copies_(*context_),
      looks_(*context_),
      to_host_(*context_),
      from_host_(*context_) {}

Status CudaDevice::open_streams() {
  const Scope scope(*context_);
  SW_TRY(scope.status());
  for (Stream* stream : {&copies_, &looks_, &to_host_, &from_host_}) SW_TRY(stream->open());
  return {};
}

Status CudaDevice::copy_and_wait(std::span<const CopyPiece> pieces, CopyDirection direction, const Stream& stream) {
  Status queued = copier_.queue(pieces, direction, stream.get());
  Status done = settle(events_, stream.get());
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
  const Scope scope(*context_);
  SW_TRY(scope.status());
  if (whole || size <= kSamples * kSampleBytes) return whole_fingerprint(tensor, size);
  const std::size_t place_bytes = tensor.contiguous() ? kSampleBytes : kMaxSampledItemBytes;
  SW_ASSIGN(const PooledMemory scratch, scratch_.take(kScratchBytes));
  const std::span samples(scratch.data(), kSamples * place_bytes);
  std::ranges::fill(samples, std::byte{0});
  std::array<Block, kSamples> blocks;
  for (std::size_t i = 0; i < kSamples; ++i) {
    blocks[i] = {.strided = const_cast<std::byte*>(sample_address(tensor, size, seed, i)),
                 .packed = samples.data() + i * place_bytes,
                 .width = sample_size_bytes(tensor)};
  }
  const Status queued = copier_.queue_blocks(blocks, CopyDirection::kToHost, to_host_.get());
  const Status done = settle(events_, to_host_.get());
  SW_TRY(queued);
  SW_TRY(done);
  return digest64(samples);
}

Result<std::uint64_t> CudaDevice::whole_fingerprint(const StridedMemory& tensor, std::uint64_t size_bytes) {
  SW_ASSIGN(const PooledMemory scratch, scratch_.take(kScratchBytes));
  std::uint64_t fingerprint = 0;
  for (std::uint64_t begin = 0; begin < size_bytes; begin += kScratchBytes) {
    const std::uint64_t part = std::min(kScratchBytes, size_bytes - begin);
    const CopyPiece piece{&tensor, begin, part, scratch.data()};
    SW_TRY(copy_and_wait({&piece, 1}, CopyDirection::kToHost, to_host_));
    for (std::uint64_t chunk = 0; chunk < part; chunk += kWholeChunkBytes) {
      fingerprint =
          fold_chunk(fingerprint, {scratch.data() + chunk, std::min<std::uint64_t>(kWholeChunkBytes, part - chunk)});
    }
  }
  return fingerprint;
}

Result<bool> CudaDevice::capturing(StreamHandle stream) {
  const Scope scope(*context_);
  SW_TRY(scope.status());
  CUstreamCaptureStatus status = CUstreamCaptureStatus::kNone;
  const CUresult code = context_->driver().cuStreamIsCapturing(as_stream(stream), &status);
  // The answer for the legacy default stream while another stream that it is ordered with is being captured.
  if (code == CUresult::kStreamCaptureImplicit) return true;
  SW_TRY(context_->check(code, "cuStreamIsCapturing"));
  return status != CUstreamCaptureStatus::kNone;
}

Result<std::shared_ptr<Event>> CudaDevice::mark(std::span<const StreamHandle> streams) {
  const Scope scope(*context_);
  SW_TRY(scope.status());
  std::vector<CUstream> handles(streams.size());
  std::ranges::transform(streams, handles.begin(), as_stream);
  SW_ASSIGN(std::shared_ptr<StreamEvent> point, StreamEvent::record(events_, handles));
  return point;
}

Result<std::unique_ptr<Clones>> CudaDevice::clone(std::span<const StridedMemory> tensors, StreamHandle stream) {
  const Scope scope(*context_);
  SW_TRY(scope.status());
  std::vector<std::uint64_t> offsets;
  offsets.reserve(tensors.size());
  std::uint64_t end = 0;
  for (const StridedMemory& tensor : tensors) {
    offsets.push_back(end);
    end += (tensor.size_bytes() + kCloneAlignmentBytes - 1) / kCloneAlignmentBytes * kCloneAlignmentBytes;
  }
  PooledMemory memory;
  if (end > 0) {
    SW_ASSIGN(memory, clone_memory_.take(end));
  }
  auto clones = std::make_unique<CudaClones>(*context_, events_, std::move(memory), as_stream(stream));
  SW_TRY(clones->fill(copier_, tensors, offsets));
  return clones;
}

Result<std::unique_ptr<Looks>> CudaDevice::look(std::span<const ReplicaPlaces> places, StreamHandle stream) {
  const Scope scope(*context_);
  SW_TRY(scope.status());
  std::uint64_t size = 0;
  for (const ReplicaPlaces& each : places) size += each.width * each.rows;
  SW_ASSIGN(PooledMemory gathered, clone_memory_.take(size));
  SW_ASSIGN(PooledMemory memory, look_memory_.take(size));
  auto looks = std::make_unique<CudaLooks>(*context_, events_, std::move(gathered), std::move(memory));
  SW_TRY(looks->queue(copier_, places, as_stream(stream), looks_.get()));
  return looks;
}

Result<std::unique_ptr<Passage>> CudaDevice::begin(std::shared_ptr<Event> produced,
                                                   std::span<const StridedMemory* const> guarded, std::uint64_t seed) {
  const PassageParts parts{*context_, events_, look_memory_, copier_, copies_.get(), looks_.get()};
  return CudaPassage::begin(parts, produced, guarded, seed);
}

Status CudaDevice::hold(StreamHandle stream, const Event& event) {
  const auto* const point = dynamic_cast<const StreamEvent*>(&event);
  if (point == nullptr) {
    return fail(ErrorKind::kInternal,
                fmt::format("a stream of {} was to wait for the event of a device of another kind", name()));
  }
  const Scope scope(*context_);
  SW_TRY(scope.status());
  return point->hold(*context_, as_stream(stream));
}

}  // namespace slackwater::cuda
