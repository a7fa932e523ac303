#include <algorithm>
#include <limits>
#include <optional>

#include <fmt/format.h>

#include "base/result.hpp"
#include "layout/json_text.hpp"
#include "layout/name_table.hpp"
#include "layout/stream_layout.hpp"
#include "tensor/shape.hpp"

namespace slackwater {
namespace {

// Leaves room below 2^63 for headers and for rounding up.
constexpr std::uint64_t kMaxStateBytes = std::uint64_t{1} << 62;

std::unexpected<Error> misuse(std::string message) { return fail(ErrorKind::kInvalidArgument, std::move(message)); }

Status check_name(const std::string& name) {
  if (name.empty()) return misuse("a tensor has an empty name; give every tensor a name");
  if (!is_utf8(name)) {
    return misuse(
        fmt::format("the name of tensor '{}' is not valid UTF-8; rename it", std::string_view(name).substr(0, 80)));
  }
  if (name == "__metadata__" || name == kTreeTensorName) {
    return misuse(fmt::format("the tensor name '{}' is reserved by the file format; rename it", name));
  }
  return {};
}

// Returns the tensor's packed bytes.
Result<std::uint64_t> check_tensor(const Tensor& tensor) {
  SW_TRY(check_name(tensor.name));
  if (std::ranges::any_of(tensor.shape, [](std::int64_t dimension) { return dimension < 0; })) {
    return misuse(fmt::format("tensor '{}' has a negative dimension in its shape [{}]", tensor.name,
                              fmt::join(tensor.shape, ", ")));
  }
  const std::optional<std::uint64_t> bytes = packed_bytes(tensor.dtype, tensor.shape);
  if (!bytes || *bytes > kMaxStateBytes) {
    return misuse(
        fmt::format("tensor '{}' of shape [{}] is larger than 2^62 bytes", tensor.name, fmt::join(tensor.shape, ", ")));
  }
  if (!tensor.strides.empty()) {
    if (tensor.strides.size() != tensor.shape.size()) {
      return misuse(fmt::format(
          "tensor '{}' has {} strides for {} dimensions; give one stride a dimension, or none if it is contiguous",
          tensor.name, tensor.strides.size(), tensor.shape.size()));
    }
    if (!strides_fit(tensor.dtype, tensor.shape, tensor.strides)) {
      return misuse(fmt::format("tensor '{}' has strides [{}] that reach beyond the address space", tensor.name,
                                fmt::join(tensor.strides, ", ")));
    }
  }
  if (tensor.data == nullptr && *bytes > 0) {
    return misuse(fmt::format("tensor '{}' has {} bytes but no memory behind it (null pointer)", tensor.name, *bytes));
  }
  return *bytes;
}

}  // namespace

Status check_state(const State& state) {
  if (state.tensors.size() >= kTreeSource) {
    return misuse(fmt::format("the state has {} tensors; at most 2^32 - 2 can be saved", state.tensors.size()));
  }
  for (const auto& [key, value] : state.metadata) {
    if (!is_utf8(key) || !is_utf8(value)) {
      return misuse(
          fmt::format("the metadata entry '{}' is not valid UTF-8; encode binary values, for example as base64",
                      is_utf8(key) ? key : "(unreadable key)"));
    }
  }
  NameTable names(state.tensors.size(),
                  [&](std::uint32_t index) -> std::string_view { return state.tensors[index].name; });
  std::uint64_t total = state.tree.size();
  for (std::uint32_t i = 0; i < state.tensors.size(); ++i) {
    SW_ASSIGN(const std::uint64_t bytes, check_tensor(state.tensors[i]));
    if (names.insert(i))
      return misuse(fmt::format("two tensors are named '{}'; give each its own name", state.tensors[i].name));
    total += bytes;
    if (total > kMaxStateBytes) return misuse("the state is larger than 2^62 bytes");
  }
  return {};
}

}  // namespace slackwater
