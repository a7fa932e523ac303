#include "device/strided_copy.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <vector>

namespace slackwater {
namespace {

enum class Direction : std::uint8_t { kPack, kUnpack };

template <Direction direction>
using PackedPointer = std::conditional_t<direction == Direction::kPack, std::byte*, const std::byte*>;

template <Direction direction>
inline void move_bytes(std::byte* strided, PackedPointer<direction> packed, std::size_t size) {
  if constexpr (direction == Direction::kPack) {
    std::memcpy(packed, strided, size);
  } else {
    std::memcpy(strided, packed, size);
  }
}

// Moves whole elements, `step` bytes apart on the strided side. A constant item size turns the memcpy into one move.
template <Direction direction, std::size_t item>
void move_elements(std::byte* strided, std::int64_t step, PackedPointer<direction> packed, std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i, strided += step, packed += item)
    move_bytes<direction>(strided, packed, item);
}

template <Direction direction>
void move_elements(std::byte* strided, std::int64_t step, PackedPointer<direction> packed, std::uint64_t count,
                   std::size_t item) {
  switch (item) {
    case 1: return move_elements<direction, 1>(strided, step, packed, count);
    case 2: return move_elements<direction, 2>(strided, step, packed, count);
    case 4: return move_elements<direction, 4>(strided, step, packed, count);
    case 8: return move_elements<direction, 8>(strided, step, packed, count);
    case 16: return move_elements<direction, 16>(strided, step, packed, count);
    default:
      for (std::uint64_t i = 0; i < count; ++i, strided += step, packed += item) {
        move_bytes<direction>(strided, packed, item);
      }
  }
}

// Walks the rows (innermost dimension) of strided memory in packed order.
class RowCursor {
 public:
  RowCursor(const StridedMemory& memory, std::uint64_t row)
      : memory_(memory), outer_(memory.shape.size() - 1), index_(outer_), address_(memory.data) {
    for (std::size_t d = outer_; d-- > 0;) {
      const auto extent = static_cast<std::uint64_t>(memory.shape[d]);
      index_[d] = static_cast<std::int64_t>(row % extent);
      row /= extent;
      address_ += index_[d] * step_bytes(d);
    }
  }

  [[nodiscard]] std::byte* address() const { return address_; }
  // Rows left in the second innermost dimension.
  [[nodiscard]] std::uint64_t rows_ahead() const {
    return outer_ == 0 ? 1 : static_cast<std::uint64_t>(memory_.shape[outer_ - 1] - index_[outer_ - 1]);
  }
  // `rows` is at most rows_ahead().
  void advance(std::uint64_t rows) {
    auto by = static_cast<std::int64_t>(rows);
    for (std::size_t d = outer_; d-- > 0; by = 1) {
      index_[d] += by;
      address_ += by * step_bytes(d);
      if (index_[d] < memory_.shape[d]) return;
      address_ -= index_[d] * step_bytes(d);
      index_[d] = 0;
    }
  }

 private:
  [[nodiscard]] std::int64_t step_bytes(std::size_t dimension) const {
    return memory_.strides[dimension] * static_cast<std::int64_t>(memory_.item_bytes);
  }

  const StridedMemory& memory_;
  std::size_t outer_;
  std::vector<std::int64_t> index_;
  std::byte* address_;
};

// Moves bytes [begin, end) of one row.
template <Direction direction>
void move_in_row(std::byte* row, std::int64_t step, std::size_t item, std::uint64_t begin, std::uint64_t end,
                 PackedPointer<direction> packed) {
  if (step == static_cast<std::int64_t>(item)) return move_bytes<direction>(row + begin, packed, end - begin);
  std::byte* element = row + static_cast<std::int64_t>(begin / item) * step;
  if (const std::uint64_t inside = begin % item; inside != 0) {
    const std::uint64_t size = std::min(item - inside, end - begin);
    move_bytes<direction>(element + inside, packed, size);
    element += step;
    packed += size;
    begin += size;
  }
  const std::uint64_t count = (end - begin) / item;
  move_elements<direction>(element, step, packed, count, item);
  if (const std::uint64_t rest = (end - begin) % item; rest != 0) {
    move_bytes<direction>(element + static_cast<std::int64_t>(count) * step, packed + count * item, rest);
  }
}

// Moves whole rows of a transposed matrix, whose elements are further apart than its rows, tile by tile through a small
// buffer. Both sides are then walked along their short steps. So each cache line is used up once it is loaded, and
// steps of a power of two do not compete for the same cache set.
template <Direction direction, std::size_t item>
void move_tiles(std::byte* strided, std::int64_t row_step, std::int64_t step, std::uint64_t rows,
                std::uint64_t row_items, PackedPointer<direction> packed) {
  constexpr std::uint64_t kEdge = item <= 4 ? 64 : 32;
  constexpr std::uint64_t kPitch = (kEdge + 1) * item;
  std::array<std::byte, kEdge * kPitch> tile;
  for (std::uint64_t row = 0; row < rows; row += kEdge) {
    const std::uint64_t tile_rows = std::min(kEdge, rows - row);
    for (std::uint64_t column = 0; column < row_items; column += kEdge) {
      const std::uint64_t tile_items = std::min(kEdge, row_items - column);
      const auto rows_through_tile = [&] {
        for (std::uint64_t r = 0; r < tile_rows; ++r) {
          move_bytes<direction>(tile.data() + r * kPitch, packed + ((row + r) * row_items + column) * item,
                                tile_items * item);
        }
      };
      if constexpr (direction == Direction::kUnpack) rows_through_tile();
      for (std::uint64_t c = 0; c < tile_items; ++c) {
        std::byte* from =
            strided + static_cast<std::int64_t>(row) * row_step + static_cast<std::int64_t>(column + c) * step;
        std::byte* in_tile = tile.data() + c * item;
        for (std::uint64_t r = 0; r < tile_rows; ++r, from += row_step, in_tile += kPitch) {
          move_bytes<direction>(from, in_tile, item);
        }
      }
      if constexpr (direction == Direction::kPack) rows_through_tile();
    }
  }
}

// False if there is no version for this item size.
template <Direction direction>
bool move_transposed(std::byte* strided, std::int64_t row_step, std::int64_t step, std::size_t item, std::uint64_t rows,
                     std::uint64_t row_items, PackedPointer<direction> packed) {
  switch (item) {
    case 1: move_tiles<direction, 1>(strided, row_step, step, rows, row_items, packed); return true;
    case 2: move_tiles<direction, 2>(strided, row_step, step, rows, row_items, packed); return true;
    case 4: move_tiles<direction, 4>(strided, row_step, step, rows, row_items, packed); return true;
    case 8: move_tiles<direction, 8>(strided, row_step, step, rows, row_items, packed); return true;
    case 16: move_tiles<direction, 16>(strided, row_step, step, rows, row_items, packed); return true;
    default: return false;
  }
}

template <Direction direction>
void move(const StridedMemory& memory, std::uint64_t begin, std::uint64_t size_bytes, PackedPointer<direction> packed) {
  if (size_bytes == 0) return;
  const std::size_t item = memory.item_bytes;
  if (memory.shape.empty()) return move_bytes<direction>(memory.data + begin, packed, size_bytes);

  const std::size_t dimensions = memory.shape.size();
  const auto row_items = static_cast<std::uint64_t>(memory.shape.back());
  const std::uint64_t row_bytes = row_items * item;
  const std::int64_t step = memory.strides.back() * static_cast<std::int64_t>(item);
  const std::int64_t row_step = dimensions > 1 ? memory.strides[dimensions - 2] * static_cast<std::int64_t>(item) : 0;
  const bool transposed = dimensions > 1 && row_step != 0 && std::abs(row_step) < std::abs(step);

  RowCursor row(memory, begin / row_bytes);
  std::uint64_t in_row = begin % row_bytes;
  while (size_bytes > 0) {
    if (const std::uint64_t rows = std::min(size_bytes / row_bytes, row.rows_ahead());
        transposed && in_row == 0 && rows > 1 &&
        move_transposed<direction>(row.address(), row_step, step, item, rows, row_items, packed)) {
      packed += rows * row_bytes;
      size_bytes -= rows * row_bytes;
      row.advance(rows);
      continue;
    }
    const std::uint64_t end = std::min(row_bytes, in_row + size_bytes);
    move_in_row<direction>(row.address(), step, item, in_row, end, packed);
    packed += end - in_row;
    size_bytes -= end - in_row;
    in_row = 0;
    row.advance(1);
  }
}

}  // namespace

void pack(const StridedMemory& memory, std::uint64_t begin, std::uint64_t size_bytes, std::byte* packed) {
  move<Direction::kPack>(memory, begin, size_bytes, packed);
}

void unpack(const StridedMemory& memory, std::uint64_t begin, std::uint64_t size_bytes, const std::byte* packed) {
  move<Direction::kUnpack>(memory, begin, size_bytes, packed);
}

const std::byte* element_address(const StridedMemory& memory, std::uint64_t index) {
  std::int64_t elements = 0;
  for (std::size_t d = memory.shape.size(); d-- > 0;) {
    const auto extent = static_cast<std::uint64_t>(memory.shape[d]);
    elements += static_cast<std::int64_t>(index % extent) * memory.strides[d];
    index /= extent;
  }
  return memory.data + elements * static_cast<std::int64_t>(memory.item_bytes);
}

}  // namespace slackwater
