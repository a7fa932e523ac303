// WholeFingerprints: fingerprints of every byte of many tensors on a device, equal to those of the same bytes in host
// memory. The bytes come through a ring of pinned buffers. While one buffer is hashed, the copies into the others are
// under way. A buffer holds pieces of several tensors, so that many small ones do not cost a wait each.
// Owner: a call of CudaDevice. Thread rule: one thread, inside a Scope. Lifetime: everything given outlives it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/cuda/copier.hpp"
#include "device/cuda/objects.hpp"
#include "device/device.hpp"
#include "device/fingerprint.hpp"

namespace slackwater::cuda {

class WholeFingerprints {
 public:
  static constexpr std::size_t kBuffers = 4;
  static constexpr std::uint64_t kBufferBytes = 2u << 20;
  static constexpr std::uint64_t kMemoryBytes = kBuffers * kBufferBytes;
  static_assert(kBufferBytes % kWholeChunkBytes == 0);

  // `memory` has kMemoryBytes. `stream` is one of our own.
  WholeFingerprints(EventPool& events, Copier& copier, CUstream stream, PooledMemory memory);
  // Call once. On return nothing is written into the memory any more, or it is never lent again.
  [[nodiscard]] Result<std::vector<std::uint64_t>> of(std::span<const StridedMemory* const> tensors);

 private:
  struct Segment {
    std::size_t tensor = 0;
    std::uint64_t size_bytes = 0;
  };
  struct Buffer {
    std::byte* memory = nullptr;
    std::vector<Segment> segments;  // one after the other
    std::shared_ptr<StreamEvent> copied;
  };
  [[nodiscard]] Status fetch_and_hash();
  // Queues the next copies. Without any left, the buffer has no segments.
  [[nodiscard]] Status fill(Buffer& buffer);
  void hash(const Buffer& buffer);

  EventPool& events_;
  Copier& copier_;
  CUstream stream_;
  PooledMemory memory_;
  std::array<Buffer, kBuffers> buffers_;

  std::span<const StridedMemory* const> tensors_;
  std::size_t next_tensor_ = 0;  // that has bytes left to fetch, from next_byte_ on
  std::uint64_t next_byte_ = 0;
  std::vector<std::uint64_t> fingerprints_;
};

}  // namespace slackwater::cuda
