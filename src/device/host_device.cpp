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

using Addresses = std::array<const std::byte*, kSamples>;

// Samples lie in cold memory: their cache misses are most of a save(). So they are fetched this many tensors ahead.
constexpr std::size_t kFetchedAhead = 8;

bool is_hashed_whole(std::uint64_t size) { return size <= kSamples * kSampleBytes; }

Addresses addresses_of(const StridedMemory& tensor, std::uint64_t size, const SamplePlaces& places) {
  Addresses addresses;
  for (std::size_t i = 0; i < kSamples; ++i) addresses[i] = places.address(tensor, size, i);
  return addresses;
}

template <std::size_t kBytes>
std::uint64_t hash_samples(const Addresses& addresses, std::size_t sample_bytes) {
  // All loads come first, so that their cache misses overlap.
  std::array<std::array<std::byte, kBytes>, kSamples> samples{};
  for (std::size_t i = 0; i < kSamples; ++i) std::memcpy(samples[i].data(), addresses[i], sample_bytes);
  return digest64(std::as_bytes(std::span(samples)));
}

std::uint64_t hash_samples(const StridedMemory& tensor, const Addresses& addresses) {
  if (tensor.contiguous()) return hash_samples<kSampleBytes>(addresses, kSampleBytes);
  return hash_samples<kMaxSampledItemBytes>(addresses, sample_size_bytes(tensor));
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
    if (whole || is_hashed_whole(size)) return hash_whole(tensor, size);
    return hash_samples(tensor, addresses_of(tensor, size, SamplePlaces(seed)));
  }

  Result<std::vector<std::uint64_t>> fingerprints(std::span<const StridedMemory* const> tensors,
                                                  std::uint64_t seed) override {
    struct Fetched {
      std::uint64_t size = 0;
      Addresses addresses;
    };
    const SamplePlaces places(seed);
    std::array<Fetched, kFetchedAhead> ahead;
    const auto fetch = [&](std::size_t index) {
      if (index >= tensors.size()) return;
      const StridedMemory& tensor = *tensors[index];
      Fetched& place = ahead[index % kFetchedAhead];
      place.size = tensor.size_bytes();
      if (is_hashed_whole(place.size)) {
        __builtin_prefetch(tensor.data);
        return;
      }
      place.addresses = addresses_of(tensor, place.size, places);
      for (const std::byte* const address : place.addresses) __builtin_prefetch(address);
    };
    std::vector<std::uint64_t> result(tensors.size());
    for (std::size_t index = 0; index < kFetchedAhead; ++index) fetch(index);
    for (std::size_t index = 0; index < tensors.size(); ++index) {
      const Fetched& own = ahead[index % kFetchedAhead];
      const StridedMemory& tensor = *tensors[index];
      result[index] = is_hashed_whole(own.size) ? hash_whole(tensor, own.size) : hash_samples(tensor, own.addresses);
      fetch(index + kFetchedAhead);
    }
    return result;
  }
};

}  // namespace

Result<std::vector<std::uint64_t>> Device::fingerprints(std::span<const StridedMemory* const> tensors,
                                                        std::uint64_t seed) {
  std::vector<std::uint64_t> result;
  result.reserve(tensors.size());
  for (const StridedMemory* tensor : tensors) {
    SW_ASSIGN(result.emplace_back(), fingerprint(*tensor, seed, false));
  }
  return result;
}

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
