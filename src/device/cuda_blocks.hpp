// How a byte range of a tensor's packed form splits into what the driver can copy: runs of bytes, and rows of equal length a pitch apart (2D
// copies). Pure functions on addresses that are never followed; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "device/device.hpp"

namespace slackwater::cuda {

// `rows` rows of `width` bytes: in the tensor `pitch` apart, on the packed side `packed_pitch`. A run of bytes is one row.
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

// Calls `take` for each block of the piece, in packed order, until it fails. No pitch is larger than `max_pitch` or smaller than its
// width: where rows lie further apart, overlap, or repeat (stride 0), each comes alone.
[[nodiscard]] Status for_each_block(const CopyPiece& piece, std::uint64_t max_pitch,
                                    const std::function<Status(const Block&)>& take);

}  // namespace slackwater::cuda
