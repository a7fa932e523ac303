#include "device/cuda/blocks.hpp"

#include <algorithm>
#include <limits>

#include "base/result.hpp"
#include "device/strided_copy.hpp"

namespace slackwater::cuda {

Block row_of(const Block& block, std::uint64_t i) {
  return {.strided = block.strided + i * block.pitch,
          .packed = block.packed + i * block.packed_pitch,
          .width = block.width};
}

Status for_each_block(const CopyPiece& piece, std::uint64_t max_pitch,
                      const std::function<Status(const Block&)>& take) {
  if (piece.size_bytes == 0) return {};
  // The simplified shape is a grid of runs (bytes without gaps). Its last dimension becomes the rows of a 2D copy.
  StridedMemory grid = simplify(*piece.tensor);
  if (grid.contiguous())
    return take({.strided = grid.data + piece.begin, .packed = piece.host, .width = piece.size_bytes});
  std::uint64_t run_bytes = grid.item_bytes;
  if (grid.strides.back() == 1) {
    run_bytes *= static_cast<std::uint64_t>(grid.shape.back());
    grid.shape.pop_back();
    grid.strides.pop_back();
  }
  const auto rows_per_line = static_cast<std::uint64_t>(grid.shape.back());
  const std::int64_t step = grid.strides.back() * static_cast<std::int64_t>(grid.item_bytes);
  const bool as_2d = step >= static_cast<std::int64_t>(run_bytes) && static_cast<std::uint64_t>(step) <= max_pitch;

  std::byte* packed = piece.host;
  std::uint64_t run = piece.begin / run_bytes;
  std::uint64_t in_run = piece.begin % run_bytes;
  std::uint64_t left = piece.size_bytes;
  while (left > 0) {
    Block block{.strided = const_cast<std::byte*>(element_address(grid, run)) + in_run, .packed = packed};
    if (in_run != 0 || left < run_bytes) {
      block.width = std::min(run_bytes - in_run, left);
    } else {
      block.width = run_bytes;
      if (as_2d) block.rows = std::min(left / run_bytes, rows_per_line - run % rows_per_line);
      if (block.rows > 1) {
        block.pitch = static_cast<std::uint64_t>(step);
        block.packed_pitch = run_bytes;
      }
    }
    SW_TRY(take(block));
    packed += block.width * block.rows;
    left -= block.width * block.rows;
    run += block.rows;
    in_run = 0;
  }
  return {};
}

Status add_blocks(const ReplicaPlaces& places, std::byte* to, std::vector<Block>& blocks) {
  if (places.width == 0) return {};
  if (places.tensor->contiguous()) {
    blocks.push_back({.strided = places.tensor->data + places.begin,
                      .packed = to,
                      .width = places.width,
                      .rows = places.rows,
                      .pitch = places.pitch,
                      .packed_pitch = places.width});
    return {};
  }
  const auto add = [&](const Block& block) {
    blocks.push_back(block);
    return Status();
  };
  for (std::uint64_t row = 0; row < places.rows; ++row) {
    const CopyPiece piece{places.tensor, places.begin + row * places.pitch, places.width, to + row * places.width};
    SW_TRY(for_each_block(piece, std::numeric_limits<std::int32_t>::max(), add));
  }
  return {};
}

}  // namespace slackwater::cuda
