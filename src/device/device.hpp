// Device: the memory that tensors live in, and how bytes get into and out of it.
// StridedMemory describes one tensor's memory. A copy moves the byte range [begin, begin + size) of its packed form
// (contiguous, row major).
// Owner: Devices. Thread rule: thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/dims.hpp"
#include "slackwater/error.hpp"

namespace slackwater {

struct StridedMemory {
  std::byte* data = nullptr;
  std::uint32_t item_bytes = 1;
  Dims shape;
  Dims strides;                                    // in elements; empty: contiguous
  [[nodiscard]] std::uint64_t size_bytes() const;  // packed
  [[nodiscard]] bool contiguous() const { return strides.empty(); }
};

// Drops dimensions of size 1, merges neighbours, and clears `strides` if the result is contiguous.
[[nodiscard]] StridedMemory simplify(StridedMemory memory);

struct CopyPiece {
  const StridedMemory* tensor = nullptr;
  std::uint64_t begin = 0;  // byte in the packed form
  std::uint64_t size_bytes = 0;
  std::byte* host = nullptr;
};

class Device {
 public:
  virtual ~Device() = default;
  // Synchronous: on return the bytes are there. Called by the copy threads (stage) and the restore threads.
  [[nodiscard]] virtual Status copy_to_host(std::span<const CopyPiece> pieces) = 0;
  [[nodiscard]] virtual Status copy_from_host(std::span<const CopyPiece> pieces) = 0;
  // A 64-bit fingerprint of 16 pseudo-random samples of 8 bytes, or of every byte if `whole` or if the tensor is not
  // larger than the samples. The same seed samples the same places.
  [[nodiscard]] virtual Result<std::uint64_t> fingerprint(const StridedMemory& tensor, std::uint64_t seed,
                                                          bool whole) = 0;
  // What fingerprint(tensor, seed, false) returns for each of them. In host memory, samples are fetched ahead.
  [[nodiscard]] virtual Result<std::vector<std::uint64_t>> fingerprints(std::span<const StridedMemory* const> tensors,
                                                                        std::uint64_t seed);
  // What fingerprint(tensor, 0, true) returns for each of them. A device fetches some while others are hashed.
  [[nodiscard]] virtual Result<std::vector<std::uint64_t>> whole_fingerprints(
      std::span<const StridedMemory* const> tensors);
};

[[nodiscard]] std::unique_ptr<Device> make_host_device();

}  // namespace slackwater
