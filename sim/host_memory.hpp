// HostMemory: the ranges of host memory that cuMemHostRegister or cuMemHostAlloc has pinned.
// Owner: Simulator. Thread rule: guarded by Simulator::mutex. Lifetime: a copy shares the range that it uses, so the
// use count tells whether a copy is in flight.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "sim/device_memory.hpp"

namespace slackwater::sim {

struct PinnedRange {
  std::uintptr_t address = 0;
  std::size_t size_bytes = 0;
  int device = 0;         // whose context was current
  bool portable = false;  // pinned for the other devices too
  Mapping owned;          // memory of cuMemHostAlloc; empty for registered memory
};
using PinnedPtr = std::shared_ptr<const PinnedRange>;

class HostMemory {
 public:
  // False if one of its pages is already pinned.
  [[nodiscard]] bool add(PinnedRange range);
  [[nodiscard]] PinnedPtr at(std::uintptr_t address) const;  // by exact base address; null if there is none
  void remove(std::uintptr_t address) { ranges_.erase(address); }
  std::uint64_t remove_all_of(int device);  // returns how many there were

  // The range that contains all of these bytes, or null if none of them is pinned. nullopt if only some are pinned, or
  // if they lie in several ranges. Drivers refuse to copy those.
  [[nodiscard]] std::optional<PinnedPtr> find(std::uintptr_t address, std::size_t size_bytes) const;

  [[nodiscard]] std::uint64_t count() const { return ranges_.size(); }
  [[nodiscard]] std::uint64_t pinned_bytes() const;

 private:
  std::map<std::uintptr_t, PinnedPtr> ranges_;  // disjoint
};

// Whether every page of it is mapped in this process.
[[nodiscard]] bool is_mapped(std::uintptr_t address, std::size_t size_bytes);

}  // namespace slackwater::sim
