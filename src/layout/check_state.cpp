#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/result.hpp"
#include "layout/data_file.hpp"
#include "layout/file_layout.hpp"
#include "layout/json_text.hpp"
#include "layout/name_table.hpp"
#include "slackwater/options.hpp"
#include "tensor/box.hpp"
#include "tensor/shape.hpp"

namespace slackwater {
namespace {

constexpr std::size_t kMaxMetricNameBytes = 64u << 10;
// Leaves room below 2^63 for headers and rounding.
constexpr std::uint64_t kMaxStateBytes = std::uint64_t{1} << 62;

template <class... Args>
std::unexpected<Error> misuse(fmt::format_string<Args...> format, Args&&... args) {
  return fail(ErrorKind::kInvalidArgument, fmt::format(format, std::forward<Args>(args)...));
}

Status check_name(const std::string& name) {
  if (name.empty()) return misuse("a tensor has an empty name; give every tensor a name");
  if (!is_utf8(name)) {
    return misuse("the name of tensor '{}' is not valid UTF-8; rename it", std::string_view(name).substr(0, 80));
  }
  if (name == "__metadata__" || name == kTreeTensorName) {
    return misuse("the tensor name '{}' is reserved by the file format; rename it", name);
  }
  return {};
}

// Returns the tensor's packed bytes.
Result<std::uint64_t> check_tensor(const Tensor& tensor) {
  SW_TRY(check_name(tensor.name));
  if (std::ranges::any_of(tensor.shape, [](std::int64_t dimension) { return dimension < 0; })) {
    return misuse("tensor '{}' has a negative dimension in its shape [{}]", tensor.name, fmt::join(tensor.shape, ", "));
  }
  const std::optional<std::uint64_t> bytes = packed_bytes(tensor.dtype, tensor.shape);
  if (!bytes || *bytes > kMaxStateBytes) {
    return misuse("tensor '{}' of shape [{}] is larger than 2^62 bytes", tensor.name, fmt::join(tensor.shape, ", "));
  }
  if (!tensor.strides.empty()) {
    if (tensor.strides.size() != tensor.shape.size()) {
      return misuse(
          "tensor '{}' has {} strides for {} dimensions; give one stride per dimension, or none if it is contiguous",
          tensor.name, tensor.strides.size(), tensor.shape.size());
    }
    if (!strides_fit(tensor.dtype, tensor.shape, tensor.strides)) {
      return misuse("tensor '{}' has strides [{}] that reach beyond the address space", tensor.name,
                    fmt::join(tensor.strides, ", "));
    }
  }
  if (tensor.data == nullptr && *bytes > 0) {
    return misuse("tensor '{}' has {} bytes but no memory behind it (null pointer)", tensor.name, *bytes);
  }
  return *bytes;
}

Status check_shard(const Tensor& tensor) {
  const Shard& shard = *tensor.shard;
  if (rank_of_local_name(tensor.name)) {
    return misuse("the name '{}' is reserved for a tensor of one rank; rename the global tensor", tensor.name);
  }
  const std::optional<std::uint64_t> bytes = packed_bytes(tensor.dtype, shard.global_shape);
  if (!bytes || *bytes > kMaxStateBytes) {
    return misuse("the global tensor '{}' has the shape [{}]: a negative dimension, or more than 2^62 bytes",
                  tensor.name, fmt::join(shard.global_shape, ", "));
  }
  if (!fits({shard.offset, tensor.shape}, shard.global_shape)) {
    return misuse("the box of tensor '{}' at offset [{}] with shape [{}] does not lie in its global shape [{}]",
                  tensor.name, fmt::join(shard.offset, ", "), fmt::join(tensor.shape, ", "),
                  fmt::join(shard.global_shape, ", "));
  }
  if (shard.replica >= shard.replicas || shard.replicas > kMaxWorld) {
    return misuse("tensor '{}' is replica {} of {}; count them from 0, at most {}", tensor.name, shard.replica,
                  shard.replicas, kMaxWorld);
  }
  if (shard.replicas > 1 && (shard.replica_group.empty() || !is_utf8(shard.replica_group))) {
    return misuse("tensor '{}' is one of {} replicas without a group; give the group a name in UTF-8", tensor.name,
                  shard.replicas);
  }
  return {};
}

// Checks what the boxes of a state must agree on.
class ShardChecks {
 public:
  explicit ShardChecks(const State& state) : state_(state) {}

  Status add(std::uint32_t index) {
    const Tensor& tensor = state_.tensors[index];
    SW_TRY(check_shard(tensor));
    const Shard& shard = *tensor.shard;
    if (shard.replicas == 1) return {};
    if (group_ == nullptr || group_->first != shard.replica_group) {
      group_ = &*groups_.try_emplace(shard.replica_group, shard.replica, shard.replicas).first;
    }
    if (group_->second != std::pair(shard.replica, shard.replicas)) {
      return misuse("this rank is replica {} of {} of group '{}', but replica {} of {} for tensor '{}'",
                    group_->second.first, group_->second.second, shard.replica_group, shard.replica, shard.replicas,
                    tensor.name);
    }
    return {};
  }

  // Two tensors have the same name.
  Status add_again(std::uint32_t first, std::uint32_t index) {
    const Tensor& a = state_.tensors[first];
    const Tensor& b = state_.tensors[index];
    if (a.shard.has_value() != b.shard.has_value()) {
      return misuse("'{}' is both a global tensor and a tensor of this rank alone; give each its own name", a.name);
    }
    if (!a.shard) return misuse("two tensors are named '{}'; give each its own name", a.name);
    if (a.dtype != b.dtype || a.shard->global_shape != b.shard->global_shape) {
      return misuse("two boxes of tensor '{}' disagree about the dtype or the shape of the global tensor", a.name);
    }
    if (several_.empty() || several_.back() != first) several_.push_back(first);
    several_.push_back(index);
    return {};
  }

  Status finish() {
    std::erase_if(several_, [&](std::uint32_t i) { return volume(state_.tensors[i].shape) == 0; });
    const auto name_and_offset = [&](std::uint32_t i) {
      return std::tie(state_.tensors[i].name, state_.tensors[i].shard->offset);
    };
    std::ranges::sort(several_, [&](std::uint32_t a, std::uint32_t b) {
      return std::tuple_cat(name_and_offset(a), std::tie(a)) < std::tuple_cat(name_and_offset(b), std::tie(b));
    });
    for (std::size_t i = 1; i < several_.size(); ++i) {
      if (several_[i - 1] == several_[i] || name_and_offset(several_[i - 1]) != name_and_offset(several_[i])) continue;
      const Tensor& tensor = state_.tensors[several_[i]];
      return misuse("two boxes of tensor '{}' begin at offset [{}]; give every box once", tensor.name,
                    fmt::join(tensor.shard->offset, ", "));
    }
    return {};
  }

 private:
  using Group = std::pair<std::uint32_t, std::uint32_t>;  // replica, replicas
  const State& state_;
  std::map<std::string_view, Group> groups_;
  const std::pair<const std::string_view, Group>* group_ = nullptr;  // the last one used
  std::vector<std::uint32_t> several_;                               // boxes of tensors that have several
};

// Metrics go into the manifest, which must stay small enough to be read back.
Status check_metrics(const State& state) {
  if (state.metrics.size() > kMaxMetrics) {
    return misuse("the state has {} metrics, at most {} can be kept; put the others into the state itself",
                  state.metrics.size(), kMaxMetrics);
  }
  std::size_t names_bytes = 0;
  for (const auto& [name, value] : state.metrics) {
    if (!is_utf8(name)) return misuse("the name of a metric is not valid UTF-8; rename it");
    names_bytes += name.size();
  }
  if (names_bytes > kMaxMetricNameBytes) {
    return misuse("the names of the metrics take {} bytes, at most {} can be kept; shorten them", names_bytes,
                  kMaxMetricNameBytes);
  }
  return {};
}

}  // namespace

Status check_state(const State& state, bool known) {
  if (state.tensors.size() >= kTreeSource) {
    return misuse("the state has {} tensors; at most 2^32 - 2 can be saved", state.tensors.size());
  }
  for (const auto& [key, value] : state.metadata) {
    if (!is_utf8(key) || !is_utf8(value)) {
      return misuse("the metadata entry '{}' is not valid UTF-8; encode binary values, for example as base64",
                    is_utf8(key) ? key : "(unreadable key)");
    }
  }
  SW_TRY(check_metrics(state));
  if (known) {
    for (const Tensor& tensor : state.tensors) {
      if (tensor.data != nullptr) continue;
      if (const auto bytes = check_tensor(tensor); !bytes) {
        Error error = bytes.error();
        error.tensor = tensor.name;
        return fail(std::move(error));
      }
    }
    return {};
  }
  NameTable names(state.tensors.size(),
                  [&](std::uint32_t index) -> std::string_view { return state.tensors[index].name; });
  ShardChecks shards(state);
  const auto check = [&](std::uint32_t i) -> Result<std::uint64_t> {
    SW_ASSIGN(const std::uint64_t bytes, check_tensor(state.tensors[i]));
    if (state.tensors[i].shard) SW_TRY(shards.add(i));
    if (const auto first = names.insert(i)) SW_TRY(shards.add_again(*first, i));
    return bytes;
  };
  std::uint64_t total = state.tree.size();
  for (std::uint32_t i = 0; i < state.tensors.size(); ++i) {
    auto bytes = check(i);
    if (!bytes) {
      bytes.error().tensor = state.tensors[i].name;
      return fail(std::move(bytes).error());
    }
    total += *bytes;
    if (total > kMaxStateBytes) return misuse("the state is larger than 2^62 bytes");
  }
  return shards.finish();
}

}  // namespace slackwater
