#include "layout/tied_table.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>

#include "tensor/shape.hpp"

namespace slackwater {
namespace {

bool same_box(const std::optional<Shard>& a, const std::optional<Shard>& b) {
  if (!a || !b) return !a && !b;
  return a->global_shape == b->global_shape && a->offset == b->offset && a->replica == b->replica &&
         a->replicas == b->replicas && a->replica_group == b->replica_group;
}

// Includes shape, dtype and offset, because there may be many views of one pointer. Leaves out strides, because empty
// and contiguous strides mean the same.
std::uint64_t memory_hash(const Tensor& tensor) {
  constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15;
  std::uint64_t hash = reinterpret_cast<std::uintptr_t>(tensor.data) ^ (static_cast<std::uint64_t>(tensor.dtype) << 56);
  const auto mix = [&](std::uint64_t word) {
    hash += word;
    hash *= kOdd;
    hash ^= hash >> 32;
  };
  mix(0);
  for (const std::int64_t dimension : tensor.shape) mix(static_cast<std::uint64_t>(dimension));
  if (tensor.shard) {
    for (const std::int64_t at : tensor.shard->offset) mix(static_cast<std::uint64_t>(at));
  }
  return hash;
}

}  // namespace

bool tied(const Tensor& a, const Tensor& b) {
  return a.data == b.data && a.dtype == b.dtype && a.device == b.device && a.shape == b.shape &&
         (a.strides == b.strides || (is_contiguous(a.shape, a.strides) && is_contiguous(b.shape, b.strides))) &&
         same_box(a.shard, b.shard);
}

TiedTable::TiedTable(std::span<const Tensor> tensors)
    : tensors_(tensors), slots_(std::bit_ceil(std::max<std::size_t>(tensors.size() * 2, 2))) {}

std::uint32_t TiedTable::insert(std::uint32_t index) {
  const Tensor& tensor = tensors_[index];
  const std::uint64_t hash = memory_hash(tensor);
  const std::size_t mask = slots_.size() - 1;
  std::size_t at = hash & mask;
  for (; slots_[at].index != kFree; at = (at + 1) & mask) {
    if (slots_[at].hash == hash && tied(tensors_[slots_[at].index], tensor)) return slots_[at].index;
  }
  slots_[at] = {hash, index};
  return index;
}

}  // namespace slackwater
