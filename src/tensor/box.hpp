// Boxes of a global tensor: where they meet, and whether they tile it. Pure functions; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace slackwater {

// A box somebody else holds. Offset and shape have one number for each dimension, none negative.
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

// Whether the box has the dimensions of a tensor of this shape and lies inside it. Any numbers may be given.
[[nodiscard]] bool fits(BoxView box, std::span<const std::int64_t> global_shape);

// Elements. nullopt: a negative extent, or more than 2^63 - 1 on the way from the first dimension to the last.
[[nodiscard]] std::optional<std::int64_t> volume(std::span<const std::int64_t> shape);

// What both hold; nullopt if nothing. Boxes of the same number of dimensions.
[[nodiscard]] std::optional<Box> intersect(BoxView a, BoxView b);

// "[0:512,16:32]": start and end in each dimension. A box of no dimensions is "[]".
[[nodiscard]] std::string to_string(BoxView box);

// Why boxes do not tile a tensor.
struct TilingFault {
  Box region;                                               // a place in the tensor that none holds, or more than one
  std::optional<std::pair<std::size_t, std::size_t>> both;  // the boxes that hold it; none: a hole
  std::uint64_t missing = 0;  // elements that the boxes have too few, in all; 0 if they have enough
};

// Whether every element lies in exactly one box; boxes without elements do not count. Needs boxes that fit() and a shape
// with a volume. Quick for rows, columns and grids of any number of boxes (n log n), and for what people make of them.
[[nodiscard]] std::optional<TilingFault> check_tiling(std::span<const std::int64_t> global_shape,
                                                      std::span<const BoxView> boxes);

}  // namespace slackwater
