// CopyBudget: how much may be queued on each device ahead of the fence. Where the driver has fewer queues than there
// are streams (CUDA_DEVICE_MAX_CONNECTIONS), a small copy of the trainer, such as loss.item(), may wait behind all
// that was queued before it. This bounds that wait. Where it has enough, turns do (device/cuda/copy_stream.hpp).
// A chunk that alone is over the limit gets through when nothing else is outstanding, so every snapshot can finish.
// Owner: Stager. Thread rule: one thread at a time, under the stager's lock.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <span>

namespace slackwater {

class AsyncDevice;

// What one chunk has one device do.
struct CopyCost {
  const AsyncDevice* device = nullptr;
  std::uint64_t size_bytes = 0;
  std::uint64_t operations = 0;  // calls into the driver
};

class CopyBudget {
 public:
  // 0: no limit.
  CopyBudget(std::uint64_t max_bytes, std::uint64_t max_operations)
      : max_bytes_(max_bytes), max_operations_(max_operations) {}

  [[nodiscard]] bool limited() const { return max_bytes_ != 0; }
  [[nodiscard]] bool has_room(std::span<const CopyCost> costs) const {
    return !limited() || std::ranges::all_of(costs, [&](const CopyCost& cost) {
      const auto found = outstanding_.find(cost.device);
      if (found == outstanding_.end()) return true;
      return found->second.size_bytes + cost.size_bytes <= max_bytes_ &&
             found->second.operations + cost.operations <= max_operations_;
    });
  }
  void take(std::span<const CopyCost> costs) {
    for (const CopyCost& cost : costs) {
      CopyCost& sum = outstanding_[cost.device];
      sum.size_bytes += cost.size_bytes;
      sum.operations += cost.operations;
    }
  }
  void give_back(std::span<const CopyCost> costs) {
    for (const CopyCost& cost : costs) {
      const auto found = outstanding_.find(cost.device);
      found->second.size_bytes -= cost.size_bytes;
      found->second.operations -= cost.operations;
      // An entry means that something is outstanding.
      if (found->second.size_bytes == 0 && found->second.operations == 0) outstanding_.erase(found);
    }
  }

 private:
  const std::uint64_t max_bytes_;
  const std::uint64_t max_operations_;
  std::map<const AsyncDevice*, CopyCost> outstanding_;  // without devices that have none
};

}  // namespace slackwater
