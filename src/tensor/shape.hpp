// Sizes of shapes, with every overflow noticed. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "slackwater/tensor.hpp"

namespace slackwater {

// Bytes of the packed (contiguous, row major) tensor. nullopt: a negative dimension, or more than 2^63 - 1 elements or
// bytes on the way from the first dimension to the last (safetensors multiplies in that order, and refuses then even if
// a later one is 0).
[[nodiscard]] std::optional<std::uint64_t> packed_bytes(DType dtype, std::span<const std::int64_t> shape);

// Whether the elements lie packed and in row-major order. Empty strides say so; a dimension of 1 may have any stride.
// Needs a shape that packed_bytes() accepts.
[[nodiscard]] bool is_contiguous(std::span<const std::int64_t> shape, std::span<const std::int64_t> strides);

// Whether the byte distance from the lowest to the highest element addressed stays below 2^63. Needs shape and strides
// of one rank.
[[nodiscard]] bool strides_fit(DType dtype, std::span<const std::int64_t> shape, std::span<const std::int64_t> strides);

}  // namespace slackwater
