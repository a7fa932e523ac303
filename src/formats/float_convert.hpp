// Converts floating-point tensors as tensor.to(dtype) of torch does: through float32, to the nearest value, ties to
// even.
// Pure functions; any thread.
#pragma once

#include <cstddef>
#include <span>

#include "slackwater/tensor.hpp"

namespace slackwater::formats {

// float64, float32, float16 and bfloat16.
[[nodiscard]] bool is_convertible(DType dtype);

// `from` and `to` must be convertible. `out` has room for as many elements as `in` has.
void convert_floats(DType from, std::span<const std::byte> in, DType to, std::span<std::byte> out);

}  // namespace slackwater::formats
