// Where a tensor is sampled, to compare it with other ranks: everywhere, or in a few samples of 8 bytes. The samples
// are equally far apart, and the seed chooses the first. So a contiguous difference longer than their distance cannot
// be missed. Places are bytes of the packed form and do not depend on strides or on the device. Pure functions; any
// thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/digest.hpp"
#include "device/device.hpp"
#include "device/fingerprint.hpp"
#include "device/strided_copy.hpp"

namespace slackwater {

inline constexpr std::size_t kMaxReplicaSamples = 8;

// `rows` runs of `width` bytes, `pitch` apart in the packed form.
struct ReplicaPlaces {
  const StridedMemory* tensor = nullptr;
  std::uint64_t begin = 0;
  std::uint64_t width = 0;
  std::uint64_t rows = 1;
  std::uint64_t pitch = 0;
};

[[nodiscard]] inline ReplicaPlaces replica_places(const StridedMemory& tensor, std::uint64_t size_bytes,
                                                  std::uint64_t seed, std::size_t samples, bool whole) {
  if (whole || size_bytes <= kMaxReplicaSamples * kSampleBytes) return {&tensor, 0, size_bytes, 1, size_bytes};
  const std::uint64_t pitch = size_bytes / samples;
  const std::uint64_t starts = size_bytes - (samples - 1) * pitch - kSampleBytes + 1;
  return {&tensor, random_below(seed, starts), kSampleBytes, samples, pitch};
}

// Digest of the concatenated bytes at these places, in host memory. PendingSamples::digests() returns the same.
[[nodiscard]] inline std::uint64_t digest_places(const ReplicaPlaces& places) {
  const StridedMemory& tensor = *places.tensor;
  if (places.rows == 1 && tensor.contiguous()) return digest64({tensor.data + places.begin, places.width});
  if (places.rows == 1) {
    std::vector<std::byte> packed(places.width);
    pack(tensor, places.begin, places.width, packed.data());
    return digest64(packed);
  }
  std::array<std::byte, kMaxReplicaSamples * kSampleBytes> samples;
  for (std::size_t i = 0; i < places.rows; ++i) {
    const std::uint64_t place = places.begin + i * places.pitch;
    std::byte* const to = samples.data() + i * kSampleBytes;
    if (tensor.contiguous()) {
      std::copy_n(tensor.data + place, kSampleBytes, to);
    } else {
      pack(tensor, place, kSampleBytes, to);
    }
  }
  return digest64(std::span(samples).first(places.rows * kSampleBytes));
}

inline void prefetch_places(const ReplicaPlaces& places) {
  if (!places.tensor->contiguous()) return;
  for (std::size_t i = 0; i < places.rows; ++i) {
    __builtin_prefetch(places.tensor->data + places.begin + i * places.pitch);
  }
}

}  // namespace slackwater
