// Maps element types to those of safetensors and back. Pure functions; any thread.
// safetensors has no complex32 and no complex128, and one unknown name makes a whole file unreadable for its library.
// Those two are stored as pairs of their real type, with one more dimension. torch.view_as_complex() turns them back
// without a copy.
#pragma once

#include <optional>
#include <string_view>

#include "slackwater/tensor.hpp"

namespace slackwater {

// What an element type is stored as.
struct StoredDType {
  DType dtype;   // one that safetensors has
  bool as_pair;  // each element is stored as two of them, and the stored shape ends in another dimension of 2
};

[[nodiscard]] StoredDType stored_dtype(DType dtype);

// "F32", "BF16", "F8_E4M3", ...; only for a stored type.
[[nodiscard]] std::string_view safetensors_name(DType stored);
[[nodiscard]] std::optional<DType> dtype_from_safetensors(std::string_view name);

}  // namespace slackwater
