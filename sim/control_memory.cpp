// The control interface (sim_cuda.h): device memory, bypassing streams.
#include <sys/mman.h>

#include <cstring>

#include "sim/sim_cuda.h"
#include "sim/simulator.hpp"

using namespace slackwater::sim;

namespace {

AllocationPtr allocation_at(std::uint64_t address, std::size_t size_bytes) {
  Simulator& sim = simulator();
  const std::lock_guard lock(sim.mutex);
  return sim.memory.find(address, size_bytes);
}

std::mutex& memory_mutex_of(const Allocation& allocation) {
  Simulator& sim = simulator();
  const std::lock_guard lock(sim.mutex);
  return sim.device_at(allocation.device)->memory_mutex;
}

}  // namespace

int swsim_is_device_address(uint64_t address) { return allocation_at(address, 1) != nullptr ? 1 : 0; }

void* swsim_device_to_host_alias(uint64_t address) {
  const AllocationPtr allocation = allocation_at(address, 1);
  return allocation != nullptr ? allocation->at(address) : nullptr;
}

int swsim_read(void* to, uint64_t from, size_t size_bytes) {
  const AllocationPtr allocation = allocation_at(from, size_bytes);
  if (allocation == nullptr) return static_cast<int>(CUresult::kInvalidValue);
  const std::lock_guard lock(memory_mutex_of(*allocation));
  if (!allocation->mapped) return static_cast<int>(CUresult::kIllegalAddress);
  std::memcpy(to, allocation->at(from), size_bytes);
  return 0;
}

int swsim_write(uint64_t to, const void* from, size_t size_bytes) {
  const AllocationPtr allocation = allocation_at(to, size_bytes);
  if (allocation == nullptr) return static_cast<int>(CUresult::kInvalidValue);
  const std::lock_guard lock(memory_mutex_of(*allocation));
  if (!allocation->mapped) return static_cast<int>(CUresult::kIllegalAddress);
  std::memcpy(allocation->at(to), from, size_bytes);
  return 0;
}

int swsim_unmap(uint64_t address) {
  const AllocationPtr allocation = allocation_at(address, 1);
  if (allocation == nullptr || allocation->address != address) return static_cast<int>(CUresult::kInvalidValue);
  const std::lock_guard lock(memory_mutex_of(*allocation));
  if (!allocation->mapped.exchange(false)) return static_cast<int>(CUresult::kInvalidValue);
  // The bytes are gone: whoever maps memory here again finds zeros.
  const Mapping& alias = allocation->alias;
  const bool emptied = ::madvise(alias.data(), alias.size_bytes(), MADV_REMOVE) == 0;
  if (!emptied) std::memset(alias.data(), 0, alias.size_bytes());
  return 0;
}

int swsim_map(uint64_t address) {
  const AllocationPtr allocation = allocation_at(address, 1);
  if (allocation == nullptr || allocation->address != address) return static_cast<int>(CUresult::kInvalidValue);
  {
    Simulator& sim = simulator();
    const std::lock_guard lock(sim.mutex);
    if (allocation->mapped) return static_cast<int>(CUresult::kInvalidValue);
    if (allocation->size_bytes > sim.free_bytes(*sim.device_at(allocation->device))) {
      return static_cast<int>(CUresult::kOutOfMemory);
    }
  }
  const std::lock_guard lock(memory_mutex_of(*allocation));
  allocation->mapped = true;
  return 0;
}

int swsim_free_for_reuse(uint64_t address) {
  Simulator& sim = simulator();
  const std::lock_guard lock(sim.mutex);
  return static_cast<int>(sim.memory.free_for_reuse(address) ? CUresult::kSuccess : CUresult::kInvalidValue);
}
