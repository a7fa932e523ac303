// Element types on their way into a safetensors file and back. Pure functions; any thread.
// safetensors knows no complex32 and no complex128, and one unknown name makes a whole file unreadable for its library.
// Those two are stored as pairs of their real type, one dimension longer: what torch.view_as_complex() turns back
// without a copy.
#pragma once

#include <optional>
#include <string_view>

#include "slackwater/tensor.hpp"

namespace slackwater {

// What an element type is stored as.
struct StoredDType {
  DType dtype;   // one that safetensors knows
  bool as_pair;  // each element is two of them: the stored shape ends in a further dimension of 2
};

[[nodiscard]] StoredDType stored_dtype(DType dtype);

// "F32", "BF16", "F8_E4M3", ...: for a stored type only.
[[nodiscard]] std::string_view safetensors_name(DType stored);
[[nodiscard]] std::optional<DType> dtype_from_safetensors(std::string_view name);

}  // namespace slackwater
