// Which bytes a fingerprint samples and how it hashes them. It is the same for every device, so equal bytes have equal
// fingerprints wherever they are. Pure functions that compute addresses but never dereference them; any thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/digest.hpp"
#include "device/device.hpp"
#include "device/strided_copy.hpp"

namespace slackwater {

inline constexpr std::size_t kSamples = 16;
inline constexpr std::size_t kSampleBytes = 8;
inline constexpr std::size_t kMaxSampledItemBytes = 16;
inline constexpr std::size_t kWholeChunkBytes = 64u << 10;

// The finaliser of splitmix64: mixes the bits of any word well.
[[nodiscard]] inline std::uint64_t mix(std::uint64_t word) {
  word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9;
  word = (word ^ (word >> 27)) * 0x94d049bb133111eb;
  return word ^ (word >> 31);
}

// A number below `places`, from a word whose bits are well mixed.
[[nodiscard]] inline std::uint64_t fraction_of(std::uint64_t places, std::uint64_t mixed) {
  return static_cast<std::uint64_t>((static_cast<unsigned __int128>(mixed) * places) >> 64);
}

// A pseudo-random number below `places`.
[[nodiscard]] inline std::uint64_t random_below(std::uint64_t word, std::uint64_t places) {
  return fraction_of(places, mix(word));
}

// Where the samples of a tensor lie, for one seed: sample i at a pseudo-random place in the i-th sixteenth. So a
// contiguous change of more than an eighth of the tensor cannot be missed.
class SamplePlaces {
 public:
  explicit SamplePlaces(std::uint64_t seed) {
    for (std::size_t i = 0; i < kSamples; ++i) words_[i] = mix(seed + (i + 1) * 0x9e3779b97f4a7c15);
  }

  // A sample is 8 bytes of a contiguous tensor, or one element of a strided tensor.
  [[nodiscard]] const std::byte* address(const StridedMemory& tensor, std::uint64_t size_bytes, std::size_t i) const {
    if (tensor.contiguous()) return tensor.data + place(i, size_bytes - kSampleBytes + 1);
    return element_address(tensor, place(i, size_bytes / tensor.item_bytes));
  }

 private:
  [[nodiscard]] std::uint64_t place(std::size_t i, std::uint64_t places) const {
    return (i * places + fraction_of(places, words_[i])) / kSamples;
  }

  std::array<std::uint64_t, kSamples> words_;
};

[[nodiscard]] inline std::size_t sample_size_bytes(const StridedMemory& tensor) {
  return tensor.contiguous() ? kSampleBytes : std::min<std::size_t>(tensor.item_bytes, kMaxSampledItemBytes);
}

// A fingerprint of all bytes starts with 0 and takes in the packed form in chunks of kWholeChunkBytes.
[[nodiscard]] inline std::uint64_t fold_chunk(std::uint64_t fingerprint, std::span<const std::byte> chunk) {
  return mix(fingerprint + 0x9e3779b97f4a7c15) ^ digest64(chunk);
}

}  // namespace slackwater
