// DeviceMemory: what cuMemAlloc returns. Each allocation is one memfd that is mapped twice. The mapping at the device
// address has no access rights, so a host that touches it faults. Only the simulator knows the other one, the alias.
// Owner: Simulator. Thread rule: guarded by Simulator::mutex; the bytes at an alias by Device::memory_mutex.
// Lifetime: work that uses an allocation shares it, so that a free never takes memory from a running copy. A test can
// take it away all the same: see Allocation::mapped and free_for_reuse().
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "device/cuda/abi.hpp"

namespace slackwater::sim {

// A memory mapping. The destructor unmaps it.
class Mapping {
 public:
  Mapping() = default;
  Mapping(void* address, std::size_t size_bytes) : address_(address), size_bytes_(size_bytes) {}
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();

  [[nodiscard]] std::byte* data() const { return static_cast<std::byte*>(address_); }
  [[nodiscard]] std::size_t size_bytes() const { return size_bytes_; }

 private:
  void* address_ = nullptr;
  std::size_t size_bytes_ = 0;
};

struct Allocation {
  int device = 0;
  cuda::CUdeviceptr address = 0;
  std::size_t size_bytes = 0;  // as asked for
  Mapping reserved;            // at the device address
  Mapping alias;
  // False: the address is reserved, but has no memory. Changes with Device::memory_mutex held.
  std::atomic<bool> mapped = true;

  [[nodiscard]] std::byte* at(cuda::CUdeviceptr inside) const { return alias.data() + (inside - address); }
};
using AllocationPtr = std::shared_ptr<Allocation>;

class DeviceMemory {
 public:
  // Null if the operating system has no more memory or mappings.
  [[nodiscard]] AllocationPtr allocate(int device, std::size_t size_bytes);
  // The allocation that holds all of these bytes; null if none does.
  [[nodiscard]] AllocationPtr find(cuda::CUdeviceptr address, std::size_t size_bytes) const;
  // `address` is the exact start. It is not reused soon, so that a use after free shows.
  [[nodiscard]] bool free(cuda::CUdeviceptr address);
  // As free(), but the next allocation of this size gets the same address and the same memory.
  [[nodiscard]] bool free_for_reuse(cuda::CUdeviceptr address);
  std::uint64_t free_all_of(int device);  // returns how many there were
  [[nodiscard]] bool was_freed(cuda::CUdeviceptr address) const;

  [[nodiscard]] std::uint64_t count() const { return live_.size(); }
  [[nodiscard]] std::uint64_t used_bytes(int device) const;
  void forget_freed();

 private:
  using Live = std::map<cuda::CUdeviceptr, AllocationPtr>;
  Live::iterator retire(Live::iterator entry);

  Live live_;
  std::deque<Mapping> freed_;  // addresses without memory
  std::vector<AllocationPtr> reusable_;
};

}  // namespace slackwater::sim
