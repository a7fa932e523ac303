// Sizes of shapes, with every overflow checked. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "slackwater/tensor.hpp"

namespace slackwater {

// Bytes of the packed (contiguous, row major) tensor. nullopt if a dimension is negative, or if multiplying from the
// first dimension to the last passes 2^63 - 1 elements or bytes. safetensors multiplies in that order and refuses such
// a shape even if a later dimension is 0.
[[nodiscard]] std::optional<std::uint64_t> packed_bytes(DType dtype, std::span<const std::int64_t> shape);

// Whether the elements lie packed in row-major order. Empty strides mean yes. A dimension of 1 may have any stride.
// packed_bytes() must accept the shape.
[[nodiscard]] bool is_contiguous(std::span<const std::int64_t> shape, std::span<const std::int64_t> strides);

// Whether the byte distance from the lowest to the highest element stays below 2^63. Shape and strides must have the
// same length.
[[nodiscard]] bool strides_fit(DType dtype, std::span<const std::int64_t> shape, std::span<const std::int64_t> strides);

}  // namespace slackwater
