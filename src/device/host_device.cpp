#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "base/digest.hpp"
#include "base/result.hpp"
#include "device/device.hpp"
#include "device/fingerprint.hpp"
#include "device/streaming_copy.hpp"
#include "device/strided_copy.hpp"

namespace slackwater {
namespace {

template <std::size_t kBytes>
std::uint64_t hash_samples(const StridedMemory& tensor, std::uint64_t size, std::uint64_t seed,
                           std::size_t sample_bytes) {
  // All loads come first, so that their cache misses overlap.
  std::array<std::array<std::byte, kBytes>, kSamples> samples{};
  for (std::size_t i = 0; i < kSamples; ++i) {
    std::memcpy(samples[i].data(), sample_address(tensor, size, seed, i), sample_bytes);
  }
  return digest64(std::as_bytes(std::span(samples)));
}

// In chunks, so that a strided tensor passes through a small buffer and gets the same fingerprint as its packed form.
std::uint64_t hash_whole(const StridedMemory& tensor, std::uint64_t size) {
  std::vector<std::byte> buffer(tensor.contiguous() ? 0 : std::min<std::uint64_t>(size, kWholeChunkBytes));
  std::uint64_t hash = 0;
  for (std::uint64_t begin = 0; begin < size; begin += kWholeChunkBytes) {
    const std::uint64_t chunk = std::min<std::uint64_t>(kWholeChunkBytes, size - begin);
    const std::byte* bytes = tensor.data + begin;
    if (!tensor.contiguous()) {
      pack(tensor, begin, chunk, buffer.data());
      bytes = buffer.data();
    }
    hash = fold_chunk(hash, {bytes, chunk});
  }
  return hash;
}

class HostDevice final : public Device {
 public:
  Status copy_to_host(std::span<const CopyPiece> pieces) override {
    for (const CopyPiece& piece : pieces) {
      if (piece.size_bytes == 0) continue;
      if (piece.tensor->contiguous()) {
        streaming_copy(piece.host, piece.tensor->data + piece.begin, piece.size_bytes);
      } else {
        pack(*piece.tensor, piece.begin, piece.size_bytes, piece.host);
      }
    }
    return {};
  }

  Status copy_from_host(std::span<const CopyPiece> pieces) override {
    for (const CopyPiece& piece : pieces) {
      if (piece.size_bytes == 0) continue;
      if (piece.tensor->contiguous()) {
        streaming_copy(piece.tensor->data + piece.begin, piece.host, piece.size_bytes);
      } else {
        unpack(*piece.tensor, piece.begin, piece.size_bytes, piece.host);
      }
    }
    return {};
  }

  Result<std::uint64_t> fingerprint(const StridedMemory& tensor, std::uint64_t seed, bool whole) override {
    const std::uint64_t size = tensor.size_bytes();
    if (whole || size <= kSamples * kSampleBytes) return hash_whole(tensor, size);
    if (tensor.contiguous()) return hash_samples<kSampleBytes>(tensor, size, seed, kSampleBytes);
    return hash_samples<kMaxSampledItemBytes>(tensor, size, seed, sample_size_bytes(tensor));
  }

  void prefetch(const StridedMemory& tensor, std::uint64_t seed) override {
    const std::uint64_t size = tensor.size_bytes();
    if (size <= kSamples * kSampleBytes) {
      __builtin_prefetch(tensor.data);
      return;
    }
    for (std::size_t i = 0; i < kSamples; ++i) __builtin_prefetch(sample_address(tensor, size, seed, i));
  }
};

}  // namespace

Result<std::vector<std::uint64_t>> Device::whole_fingerprints(std::span<const StridedMemory* const> tensors) {
  std::vector<std::uint64_t> fingerprints;
  fingerprints.reserve(tensors.size());
  for (const StridedMemory* tensor : tensors) {
    SW_ASSIGN(fingerprints.emplace_back(), fingerprint(*tensor, 0, true));
  }
  return fingerprints;
}

std::unique_ptr<Device> make_host_device() { return std::make_unique<HostDevice>(); }

}  // namespace slackwater
