// HostMemory: the ranges of host memory that are pinned, by cuMemHostRegister or cuMemHostAlloc.
// Thread rule: guarded by Simulator::mutex. Lifetime: a copy shares the range it uses, which tells whether one is in
// flight.
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
  Mapping owned;          // of cuMemHostAlloc; empty for registered memory
};
using PinnedPtr = std::shared_ptr<const PinnedRange>;

class HostMemory {
 public:
  // False if a page of it is pinned already.
  [[nodiscard]] bool add(PinnedRange range);
  [[nodiscard]] PinnedPtr at(std::uintptr_t address) const;  // by exact base address; null if there is none
  void remove(std::uintptr_t address) { ranges_.erase(address); }
  std::uint64_t remove_all_of(int device);  // how many there were

  // The range that holds all of these bytes, null if no byte of them is pinned; nullopt if only a part is, or if they
  // lie in several ranges: drivers refuse a copy of those.
  [[nodiscard]] std::optional<PinnedPtr> find(std::uintptr_t address, std::size_t size_bytes) const;

  [[nodiscard]] std::uint64_t count() const { return ranges_.size(); }
  [[nodiscard]] std::uint64_t pinned_bytes() const;

 private:
  std::map<std::uintptr_t, PinnedPtr> ranges_;  // disjoint
};

// Whether every page of it is mapped in this process.
[[nodiscard]] bool is_mapped(std::uintptr_t address, std::size_t size_bytes);

}  // namespace slackwater::sim
