// TiedTable: finds tensors that share memory under different names. An untied tensor costs one probe.
// Thread rule: one thread. Lifetime: the tensors outlive the table and do not move.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "slackwater/tensor.hpp"

namespace slackwater {

// Whether both have the same pointer, shape, strides, dtype and device. Either both belong to one rank alone, or both
// are the same box of global tensors of the same shape, with the same replicas. Not for tensors without bytes.
[[nodiscard]] bool tied(const Tensor& a, const Tensor& b);

class TiedTable {
 public:
  explicit TiedTable(std::span<const Tensor> tensors);

  // The first inserted tensor that this one is tied to; `index` itself if there is none.
  [[nodiscard]] std::uint32_t insert(std::uint32_t index);

 private:
  struct Slot {
    std::uint64_t hash = 0;
    std::uint32_t index = kFree;
  };
  static constexpr std::uint32_t kFree = 0xffffffff;

  std::span<const Tensor> tensors_;
  std::vector<Slot> slots_;  // their number is a power of two; at most half are used
};

}  // namespace slackwater
