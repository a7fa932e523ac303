// PiecewiseReader: reads tensors of a checkpoint in pieces, verified, and hands them on in order, converted if wanted.
// A tensor of any size passes through the same two buffers.
// Thread rule: one thread. Lifetime: the checkpoint outlives it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "slackwater/checkpoint.hpp"
#include "slackwater/error.hpp"
#include "slackwater/tensor.hpp"

namespace slackwater::formats {

struct ReadItem {
  std::string tensor;  // its name in the checkpoint
  DType from = DType::kU8;
  DType to = DType::kU8;  // the same, or both are convertible (float_convert.hpp)
  std::vector<std::int64_t> shape;

  [[nodiscard]] std::uint64_t size_bytes() const;  // after conversion
};

class PiecewiseReader {
 public:
  // Bytes of an item, from `offset` on. The pieces of an item come in order, and so do the items.
  using Sink = std::function<Status(std::size_t item, std::uint64_t offset, std::span<const std::byte> bytes)>;

  explicit PiecewiseReader(Checkpoint& checkpoint, std::function<void(std::uint64_t bytes)> on_read = {});

  [[nodiscard]] Status run(std::span<const ReadItem> items, const Sink& sink);

 private:
  struct Piece {
    std::size_t item = 0;
    std::vector<std::int64_t> offset;
    std::vector<std::int64_t> shape;
    std::uint64_t first = 0;  // element of the tensor that it begins with
    std::uint64_t count = 0;  // of elements
  };
  void split(std::span<const ReadItem> items, std::size_t item, std::vector<Piece>& pieces) const;
  [[nodiscard]] Status pass_on(std::span<const ReadItem> items, std::span<const Piece> pieces, const Sink& sink);

  Checkpoint& checkpoint_;
  const std::function<void(std::uint64_t)> on_read_;
  std::vector<std::byte> read_;
  std::vector<std::byte> converted_;
};

}  // namespace slackwater::formats
