#include "tensor/box.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace slackwater {
namespace {

// Cuts the tensor at the edges of the boxes until no edge lies inside a piece. Then each box covers a piece completely
// or not at all, and a piece is good if exactly one box covers it. Cuts are made at the median edge, so that most of
// them halve the number of boxes.
class Tiling {
 public:
  Tiling(std::span<const std::int64_t> global_shape, std::span<const BoxView> boxes)
      : boxes_(boxes), low_(global_shape.size()), high_(global_shape.begin(), global_shape.end()) {}

  std::optional<TilingFault> check() {
    for (std::uint32_t i = 0; i < boxes_.size(); ++i) {
      if (std::ranges::find(boxes_[i].shape, 0) == boxes_[i].shape.end()) stack_.push_back(i);
    }
    return check(0);
  }

 private:
  struct Cut {
    std::size_t dimension = 0;
    std::int64_t at = 0;
  };

  [[nodiscard]] std::int64_t begin(std::uint32_t box, std::size_t dimension) const {
    return boxes_[box].offset[dimension];
  }
  [[nodiscard]] std::int64_t end(std::uint32_t box, std::size_t dimension) const {
    return boxes_[box].offset[dimension] + boxes_[box].shape[dimension];
  }

  // The boxes that reach into the current piece are at the end of stack_, from `first` on.
  std::optional<TilingFault> check(std::size_t first) {
    const std::size_t count = stack_.size() - first;
    if (count == 0) return fault({});
    if (count == 1 && covers(stack_[first])) return std::nullopt;
    const std::optional<Cut> cut = choose_cut(first);
    if (!cut) return fault(std::pair(stack_[first], stack_[first + 1]));  // a single box would cover it

    const std::size_t last = stack_.size();
    const auto descend = [&](std::int64_t& edge, auto&& reaches_in) {
      const std::int64_t before = std::exchange(edge, cut->at);
      for (std::size_t i = first; i < last; ++i) {
        if (reaches_in(stack_[i])) stack_.push_back(stack_[i]);
      }
      std::optional<TilingFault> found = check(last);
      stack_.resize(last);
      edge = before;
      return found;
    };
    const std::size_t d = cut->dimension;
    if (auto found = descend(high_[d], [&](std::uint32_t box) { return begin(box, d) < cut->at; })) return found;
    return descend(low_[d], [&](std::uint32_t box) { return end(box, d) > cut->at; });
  }

  [[nodiscard]] bool covers(std::uint32_t box) const {
    for (std::size_t d = 0; d < low_.size(); ++d) {
      if (begin(box, d) > low_[d] || end(box, d) < high_[d]) return false;
    }
    return true;
  }

  // Cuts in the dimension where most boxes begin inside the piece, at the median. If no box begins inside, a box that
  // ends inside leaves a hole or overlaps another one, so its end will do.
  std::optional<Cut> choose_cut(std::size_t first) {
    std::optional<Cut> cut;
    std::size_t most = 0;
    for (std::size_t d = 0; d < low_.size(); ++d) {
      edges_.clear();
      for (std::size_t i = first; i < stack_.size(); ++i) {
        if (begin(stack_[i], d) > low_[d]) edges_.push_back(begin(stack_[i], d));
      }
      if (edges_.size() <= most) continue;
      most = edges_.size();
      const auto middle = edges_.begin() + static_cast<std::ptrdiff_t>(most / 2);
      std::ranges::nth_element(edges_, middle);
      cut = Cut{d, *middle};
    }
    if (cut) return cut;
    for (std::size_t d = 0; d < low_.size(); ++d) {
      for (std::size_t i = first; i < stack_.size(); ++i) {
        if (end(stack_[i], d) < high_[d]) return Cut{d, end(stack_[i], d)};
      }
    }
    return std::nullopt;
  }

  [[nodiscard]] TilingFault fault(std::optional<std::pair<std::size_t, std::size_t>> both) const {
    TilingFault found{.region = {.offset = low_, .shape = high_}, .both = both, .missing = 0};
    for (std::size_t d = 0; d < low_.size(); ++d) found.region.shape[d] -= low_[d];
    return found;
  }

  const std::span<const BoxView> boxes_;
  std::vector<std::int64_t> low_, high_;  // the current piece
  std::vector<std::uint32_t> stack_;      // boxes of the current piece, after those of the pieces it was cut from
  std::vector<std::int64_t> edges_;
};

}  // namespace

bool fits(BoxView box, std::span<const std::int64_t> global_shape) {
  if (box.offset.size() != global_shape.size() || box.shape.size() != global_shape.size()) return false;
  for (std::size_t d = 0; d < global_shape.size(); ++d) {
    if (box.offset[d] < 0 || box.shape[d] < 0 || box.shape[d] > global_shape[d] ||
        box.offset[d] > global_shape[d] - box.shape[d])
      return false;
  }
  return true;
}

std::optional<std::int64_t> volume(std::span<const std::int64_t> shape) {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) {
    if (extent < 0 || __builtin_mul_overflow(count, extent, &count)) return std::nullopt;
  }
  return count;
}

std::optional<Box> intersect(BoxView a, BoxView b) {
  Box common;
  for (std::size_t d = 0; d < a.offset.size(); ++d) {
    const std::int64_t begin = std::max(a.offset[d], b.offset[d]);
    const std::int64_t end = std::min(a.offset[d] + a.shape[d], b.offset[d] + b.shape[d]);
    if (begin >= end) return std::nullopt;
    common.offset.push_back(begin);
    common.shape.push_back(end - begin);
  }
  return common;
}

std::string to_string(BoxView box) {
  std::string text = "[";
  for (std::size_t d = 0; d < box.offset.size(); ++d) {
    // Not format_to(), which would compile half of fmt into this file: src/base/fmt_library.cpp has it.
    text += fmt::format("{}{}:{}", d == 0 ? "" : ",", box.offset[d], box.offset[d] + box.shape[d]);
  }
  return text += ']';
}

std::optional<TilingFault> check_tiling(std::span<const std::int64_t> global_shape, std::span<const BoxView> boxes) {
  const std::int64_t wanted = volume(global_shape).value_or(0);
  if (wanted == 0 || (boxes.size() == 1 && std::ranges::equal(boxes[0].shape, global_shape))) return std::nullopt;
  std::optional<TilingFault> fault = Tiling(global_shape, boxes).check();
  if (!fault) return fault;
  // Each box has at most `wanted` elements, but many overlapping ones may pass 2^63 in all.
  std::int64_t held = 0;
  for (const BoxView& box : boxes) {
    if (__builtin_add_overflow(held, volume(box.shape).value_or(0), &held)) held = wanted;
  }
  if (held < wanted) fault->missing = static_cast<std::uint64_t>(wanted - held);
  return fault;
}

}  // namespace slackwater
