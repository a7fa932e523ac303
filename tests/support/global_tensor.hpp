// GlobalTensor: a tensor that ranks hold together, for tests. It is cut at random into boxes that tile it, and any box
// can be read back from it.
// Not thread-safe.
#pragma once

#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "support/write_checkpoint.hpp"
#include "tensor/box.hpp"

namespace slackwater::test {

// Calls `body(index, length)` for every row of a box of this shape, with the index of the row's first element and the
// number of its elements.
template <class Body>
void for_each_row(const std::vector<std::int64_t>& shape, const Body& body) {
  std::vector<std::int64_t> index(shape.size());
  for (const std::int64_t extent : shape)
    if (extent == 0) return;
  const std::size_t outer = shape.empty() ? 0 : shape.size() - 1;
  for (;;) {
    body(index, shape.empty() ? 1 : shape.back());
    std::size_t d = outer;
    while (d > 0 && ++index[d - 1] == shape[d - 1]) index[--d] = 0;
    if (d == 0) return;
  }
}

struct GlobalTensor {
  OwnedTensor whole;

  // The packed bytes of a box.
  [[nodiscard]] Bytes cut(const Box& box) const {
    const std::size_t item = item_bytes(whole.dtype);
    Bytes bytes;
    for_each_row(box.shape, [&](const std::vector<std::int64_t>& index, std::int64_t length) {
      std::int64_t at = 0;
      for (std::size_t d = 0; d < index.size(); ++d) at = at * whole.shape[d] + box.offset[d] + index[d];
      const std::byte* const row = whole.bytes.data() + static_cast<std::size_t>(at) * item;
      bytes.insert(bytes.end(), row, row + static_cast<std::size_t>(length) * item);
    });
    return bytes;
  }
  [[nodiscard]] Shard shard(const Box& box) const { return {.global_shape = whole.shape, .offset = box.offset}; }
};

// Up to `count` boxes with elements that tile the shape.
inline std::vector<Box> random_tiling(const std::vector<std::int64_t>& shape, std::size_t count,
                                      std::mt19937_64& random) {
  std::vector<Box> boxes{{std::vector<std::int64_t>(shape.size()), shape}};
  for (std::size_t attempt = 0; attempt < 4 * count && boxes.size() < count && !shape.empty(); ++attempt) {
    const std::size_t which = random() % boxes.size(), d = random() % shape.size();
    if (boxes[which].shape[d] < 2) continue;
    Box rest = boxes[which];
    const std::int64_t at = 1 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(rest.shape[d] - 1));
    boxes[which].shape[d] = at;
    rest.offset[d] += at;
    rest.shape[d] -= at;
    boxes.push_back(std::move(rest));
  }
  return boxes;
}

// What the ranks hand over; owns the bytes of the boxes. Must outlive the states.
class RankStates {
 public:
  explicit RankStates(std::uint32_t world) : states_(world) {
    for (std::uint32_t rank = 0; rank < world; ++rank) states_[rank].tree = "tree of rank " + std::to_string(rank);
  }
  void add_box(std::uint32_t rank, const GlobalTensor& tensor, const Box& box) {
    bytes_.push_back(std::make_unique<std::vector<std::byte>>(tensor.cut(box)));
    states_[rank].tensors.push_back({.name = tensor.whole.name,
                                     .dtype = tensor.whole.dtype,
                                     .shape = box.shape,
                                     .data = bytes_.back()->data(),
                                     .shard = tensor.shard(box)});
  }
  void add_local(std::uint32_t rank, const OwnedTensor& tensor) {
    bytes_.push_back(std::make_unique<std::vector<std::byte>>(tensor.bytes));
    Tensor view = tensor.view();
    view.data = bytes_.back()->data();
    states_[rank].tensors.push_back(std::move(view));
  }
  [[nodiscard]] std::vector<State>& states() { return states_; }

 private:
  std::vector<State> states_;
  std::vector<std::unique_ptr<std::vector<std::byte>>> bytes_;
};

}  // namespace slackwater::test
