#include "tensor/shape.hpp"

#include <algorithm>
#include <cstddef>

#include "tensor/box.hpp"

namespace slackwater {

std::optional<std::uint64_t> packed_bytes(DType dtype, std::span<const std::int64_t> shape) {
  const std::optional<std::int64_t> count = volume(shape);
  std::int64_t bytes = 0;
  if (!count || __builtin_mul_overflow(*count, static_cast<std::int64_t>(item_bytes(dtype)), &bytes))
    return std::nullopt;
  return static_cast<std::uint64_t>(bytes);
}

bool is_contiguous(std::span<const std::int64_t> shape, std::span<const std::int64_t> strides) {
  if (strides.empty() || std::ranges::find(shape, 0) != shape.end()) return true;
  std::int64_t packed_stride = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    if (shape[i] != 1 && strides[i] != packed_stride) return false;
    packed_stride *= shape[i];
  }
  return true;
}

bool strides_fit(DType dtype, std::span<const std::int64_t> shape, std::span<const std::int64_t> strides) {
  std::int64_t distance = 1;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] <= 1) continue;
    std::int64_t step = strides[i];
    if (step < 0 && __builtin_sub_overflow(std::int64_t{0}, step, &step)) return false;
    std::int64_t reach = 0;
    if (__builtin_mul_overflow(step, shape[i] - 1, &reach) || __builtin_add_overflow(distance, reach, &distance))
      return false;
  }
  return !__builtin_mul_overflow(distance, static_cast<std::int64_t>(item_bytes(dtype)), &distance);
}

}  // namespace slackwater
