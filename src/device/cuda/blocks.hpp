// Splits byte ranges of a tensor's packed form into what the driver can copy: runs of bytes, and rows of equal length
// that are a pitch apart (2D copies). Pure functions that compute addresses but never dereference them; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "device/device.hpp"
#include "device/replica_places.hpp"

namespace slackwater::cuda {

// `rows` rows of `width` bytes, `pitch` apart in the tensor and `packed_pitch` apart on the packed side. A run of bytes
// is one row.
struct Block {
  std::byte* strided = nullptr;
  std::byte* packed = nullptr;
  std::uint64_t width = 0;
  std::uint64_t rows = 1;
  std::uint64_t pitch = 0;
  std::uint64_t packed_pitch = 0;
};

// Row `i` of a block, as a block.
[[nodiscard]] Block row_of(const Block& block, std::uint64_t i);

// Calls `take` for each block of the piece, in packed order, until it fails. No pitch is larger than `max_pitch` or
// smaller than its width. Rows that are further apart, overlap, or repeat (stride 0) come one by one.
[[nodiscard]] Status for_each_block(const CopyPiece& piece, std::uint64_t max_pitch,
                                    const std::function<Status(const Block&)>& take);

// Adds the blocks that gather the bytes at these places to `to`, one after the other.
[[nodiscard]] Status add_blocks(const ReplicaPlaces& places, std::byte* to, std::vector<Block>& blocks);

}  // namespace slackwater::cuda
