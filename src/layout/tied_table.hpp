// TiedTable: finds tensors that are the same memory under another name. Open addressing, so that untied tensors cost one
// probe. Thread rule: one thread. Lifetime: the tensors outlive the table and stay where they are.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "slackwater/tensor.hpp"

namespace slackwater {

// Same pointer, shape, strides, dtype and device; and both of one rank alone, or both the same box of tensors of the same
// shape, shared by the same ranks. Tensors without bytes are tied to none: do not ask.
[[nodiscard]] bool tied(const Tensor& a, const Tensor& b);

class TiedTable {
 public:
  explicit TiedTable(std::span<const Tensor> tensors);

  // The first tensor inserted that this one is tied to; `index` itself if there is none.
  [[nodiscard]] std::uint32_t insert(std::uint32_t index);

 private:
  struct Slot {
    std::uint64_t hash = 0;
    std::uint32_t index = kFree;
  };
  static constexpr std::uint32_t kFree = 0xffffffff;

  std::span<const Tensor> tensors_;
  std::vector<Slot> slots_;  // a power of two, at most half full
};

}  // namespace slackwater
