// BoxFinder: the boxes of one tensor that reach into a region, without a look at all of them for each region.
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
  // `regions`: how many will be asked for. For a few, looking at every box is quicker than sorting them.
  BoxFinder(std::span<const StoredBox> boxes, std::size_t regions);

  // Each box that has an element in the region, once, with that common part.
  void find(BoxView region, const std::function<void(const StoredBox&, const Box&)>& found) const;

 private:
  [[nodiscard]] std::int64_t begin(std::uint32_t box) const { return boxes_[box].offset[dimension_]; }
  [[nodiscard]] std::int64_t end(std::uint32_t box) const { return begin(box) + boxes_[box].shape[dimension_]; }

  const std::span<const StoredBox> boxes_;
  std::size_t dimension_ = 0;         // in which most boxes begin at different places
  std::vector<std::uint32_t> order_;  // by where they begin in that dimension; empty: look at all
  std::vector<std::int64_t> reach_;   // parallel: how far those up to here reach at most
};

}  // namespace slackwater
