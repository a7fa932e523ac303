#include "restore/box_slices.hpp"

#include <algorithm>

namespace slackwater {

void BoxSlices::add(std::span<const std::int64_t> shape, std::span<const std::int64_t> begin,
                    std::span<const std::int64_t> extent, std::uint32_t item_bytes) {
  const std::size_t first = dimensions_.size();
  Dimension current{.stride_bytes = 1, .begin = 0, .extent = item_bytes};
  std::uint64_t length = item_bytes;  // of the current dimension in the box
  for (std::size_t d = shape.size(); d-- > 0;) {
    const auto from = static_cast<std::uint64_t>(begin[d]), count = static_cast<std::uint64_t>(extent[d]);
    if (current.extent == length) {  // all of it is wanted: one step outside is one run
      current.begin = from * length;
      current.extent = count * length;
      length *= static_cast<std::uint64_t>(shape[d]);
      continue;
    }
    dimensions_.push_back(current);
    current = {.stride_bytes = current.stride_bytes * length, .begin = from, .extent = count};
    length = static_cast<std::uint64_t>(shape[d]);
  }
  dimensions_.push_back(current);

  const auto added = std::span(dimensions_).subspan(first);
  std::uint64_t inner_bytes = 1;
  for (Dimension& dimension : added) {
    dimension.inner_bytes = inner_bytes;
    inner_bytes *= dimension.extent;
  }
  std::ranges::reverse(added);
  first_.push_back(dimensions_.size());
}

std::uint64_t BoxSlices::size_bytes(std::size_t slice) const {
  const Dimension& outermost = dimensions(slice).front();
  return outermost.extent * outermost.inner_bytes;
}

std::uint64_t BoxSlices::run_bytes(std::size_t slice) const { return dimensions(slice).back().extent; }

std::uint64_t BoxSlices::bytes_before(std::size_t slice, std::uint64_t at) const {
  std::uint64_t count = 0;
  for (const Dimension& dimension : dimensions(slice)) {
    const std::uint64_t step = at / dimension.stride_bytes;
    at %= dimension.stride_bytes;
    if (step < dimension.begin) break;
    if (step >= dimension.begin + dimension.extent) return count + dimension.extent * dimension.inner_bytes;
    count += (step - dimension.begin) * dimension.inner_bytes;
  }
  return count;
}

std::uint64_t BoxSlices::place_of(std::size_t slice, std::uint64_t packed) const {
  std::uint64_t at = 0;
  for (const Dimension& dimension : dimensions(slice)) {
    at += (dimension.begin + packed / dimension.inner_bytes) * dimension.stride_bytes;
    packed %= dimension.inner_bytes;
  }
  return at;
}

StridedMemory BoxSlices::view(std::size_t slice, std::uintptr_t box) const {
  StridedMemory memory;
  for (const Dimension& dimension : dimensions(slice)) {
    box += dimension.begin * dimension.stride_bytes;
    memory.shape.push_back(static_cast<std::int64_t>(dimension.extent));
    memory.strides.push_back(static_cast<std::int64_t>(dimension.stride_bytes));
  }
  memory.data = reinterpret_cast<std::byte*>(box);
  return memory;
}

}  // namespace slackwater
