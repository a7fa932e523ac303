// Boxes of a global tensor: where they intersect, and whether they tile it. Pure functions; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace slackwater {

// A view of a box in memory that somebody else owns. Offset and shape have one number per dimension, none negative.
struct BoxView {
  std::span<const std::int64_t> offset;
  std::span<const std::int64_t> shape;
};

struct Box {
  std::vector<std::int64_t> offset;
  std::vector<std::int64_t> shape;

  [[nodiscard]] BoxView view() const { return {offset, shape}; }
  friend bool operator==(const Box&, const Box&) = default;
};

// Whether the box has as many dimensions as a tensor of this shape and lies inside it. Accepts any numbers.
[[nodiscard]] bool fits(BoxView box, std::span<const std::int64_t> global_shape);

// The number of elements. nullopt if an extent is negative, or if multiplying from the first dimension to the last
// passes 2^63 - 1.
[[nodiscard]] std::optional<std::int64_t> volume(std::span<const std::int64_t> shape);

// The region in both boxes; nullopt if there is none. Both need the same number of dimensions.
[[nodiscard]] std::optional<Box> intersect(BoxView a, BoxView b);

// "[0:512,16:32]": start and end in each dimension. A box without dimensions is "[]".
[[nodiscard]] std::string to_string(BoxView box);

// Why boxes do not tile a tensor.
struct TilingFault {
  Box region;                                               // a region in no box, or in more than one
  std::optional<std::pair<std::size_t, std::size_t>> both;  // two boxes with the region; nullopt: a hole
  std::uint64_t missing = 0;  // how many elements the boxes lack in all; 0 if they have enough
};

// Checks that every element lies in exactly one box. Boxes without elements do not count. The boxes must fit() and the
// shape must have a volume. Takes n log n for rows, columns and grids of boxes, and is quick for common variations.
[[nodiscard]] std::optional<TilingFault> check_tiling(std::span<const std::int64_t> global_shape,
                                                      std::span<const BoxView> boxes);

}  // namespace slackwater
