#include "device/cuda/whole_fingerprints.hpp"

#include <algorithm>
#include <utility>

#include "base/result.hpp"

namespace slackwater::cuda {

WholeFingerprints::WholeFingerprints(EventPool& events, Copier& copier, CUstream stream, PooledMemory memory)
    : events_(events), copier_(copier), stream_(stream), memory_(std::move(memory)) {
  for (std::size_t i = 0; i < kBuffers; ++i) buffers_[i].memory = memory_.data() + i * kBufferBytes;
}

Result<std::vector<std::uint64_t>> WholeFingerprints::of(std::span<const StridedMemory* const> tensors) {
  tensors_ = tensors;
  fingerprints_.assign(tensors.size(), 0);
  if (Status hashed = fetch_and_hash(); !hashed) {
    // The next user of the memory must not find a copy in it.
    if (!wait_for_stream(events_, stream_)) memory_.retire();
    return fail(std::move(hashed).error());
  }
  return std::move(fingerprints_);
}

Status WholeFingerprints::fetch_and_hash() {
  for (Buffer& buffer : buffers_) SW_TRY(fill(buffer));
  for (std::size_t next = 0;; next = (next + 1) % kBuffers) {
    Buffer& buffer = buffers_[next];
    if (buffer.segments.empty()) return {};  // buffers are filled in turn, so the others have nothing either
    SW_TRY(buffer.copied->wait());
    hash(buffer);
    SW_TRY(fill(buffer));  // behind the copies into the other buffers, which go on meanwhile
  }
}

Status WholeFingerprints::fill(Buffer& buffer) {
  buffer.segments.clear();
  std::vector<CopyPiece> pieces;
  std::byte* to = buffer.memory;
  std::uint64_t room = kBufferBytes;
  while (next_tensor_ < tensors_.size() && pieces.size() < kMaxBatch) {
    const StridedMemory& tensor = *tensors_[next_tensor_];
    const std::uint64_t left = tensor.size_bytes() - next_byte_;
    std::uint64_t size = left;
    if (left > room) {
      size = room - room % kWholeChunkBytes;  // a chunk is hashed as a whole
      if (size == 0) break;
    }
    if (size > 0) {
      pieces.push_back({&tensor, next_byte_, size, to});
      buffer.segments.push_back({next_tensor_, size});
    }
    to += size;
    room -= size;
    next_byte_ += size;
    if (size == left) {
      ++next_tensor_;
      next_byte_ = 0;
    }
  }
  if (pieces.empty()) return {};
  SW_TRY(copier_.queue(pieces, CopyDirection::kToHost, stream_));
  SW_ASSIGN(buffer.copied, StreamEvent::record(events_, std::array{stream_}));
  return {};
}

void WholeFingerprints::hash(const Buffer& buffer) {
  const std::byte* from = buffer.memory;
  for (const Segment& segment : buffer.segments) {
    std::uint64_t& fingerprint = fingerprints_[segment.tensor];
    for (std::uint64_t begin = 0; begin < segment.size_bytes; begin += kWholeChunkBytes) {
      const std::uint64_t size = std::min<std::uint64_t>(kWholeChunkBytes, segment.size_bytes - begin);
      fingerprint = fold_chunk(fingerprint, {from + begin, size});
    }
    from += segment.size_bytes;
  }
}

}  // namespace slackwater::cuda
