// BoxFinder: finds the boxes of one tensor that reach into a region, without checking all of them for each region.
// Thread rule: constant after construction. Lifetime: the boxes outlive it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "slackwater/tensor.hpp"
#include "tensor/box.hpp"

namespace slackwater {

class BoxFinder {
 public:
  // `regions`: how many will be asked for. For a few, a linear search is quicker than sorting the boxes.
  BoxFinder(std::span<const StoredBox> boxes, std::size_t regions);

  // Reports each box that has elements in the region, once, with the common part.
  void find(BoxView region, const std::function<void(const StoredBox&, const Box&)>& found) const;

 private:
  [[nodiscard]] std::int64_t begin(std::uint32_t box) const { return boxes_[box].offset[dimension_]; }
  [[nodiscard]] std::int64_t end(std::uint32_t box) const { return begin(box) + boxes_[box].shape[dimension_]; }

  const std::span<const StoredBox> boxes_;
  std::size_t dimension_ = 0;         // the one in which most boxes begin at different places
  std::vector<std::uint32_t> order_;  // by where they begin in that dimension; empty: search all
  std::vector<std::int64_t> reach_;   // parallel: how far this box or any before it reaches
};

}  // namespace slackwater
