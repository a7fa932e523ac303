// Exported functions: device memory, pinned host memory, attributes of pointers.
#include <sys/mman.h>

#include <utility>

#include "sim/driver_api.hpp"
#include "sim/simulator.hpp"

namespace slackwater::cuda {

using namespace slackwater::sim;

namespace {

// If a copy still uses the memory, counts the caller's mistake and waits for the copy.
CUresult unpin(Simulator& sim, Call& call, PinnedPtr range) {
  const std::uintptr_t address = range->address;
  if (range.use_count() > 2) {  // ours and the one in the table
    ++sim.counts.unpinned_in_flight;
    range.reset();
    for (const auto& device : sim.devices) sim.schedule.wait_for_device(call, *device);
  }
  sim.host.remove(address);
  return CUresult::kSuccess;
}

template <class T>
CUresult answer(void* value, T what) {
  *static_cast<T*>(value) = what;
  return CUresult::kSuccess;
}

CUresult device_attribute(Simulator& sim, void* value, CUpointer_attribute attribute, CUdeviceptr address,
                          const Allocation& allocation) {
  switch (attribute) {
    case CUpointer_attribute::kContext: return answer(value, sim.device_at(allocation.device)->context);
    case CUpointer_attribute::kMemoryType: return answer(value, CUmemorytype::kDevice);
    case CUpointer_attribute::kDevicePointer: return answer(value, address);
    case CUpointer_attribute::kHostPointer: return CUresult::kInvalidValue;
    case CUpointer_attribute::kIsManaged: return answer(value, 0u);
    case CUpointer_attribute::kDeviceOrdinal: return answer(value, allocation.device);
    case CUpointer_attribute::kRangeStartAddr: return answer(value, allocation.address);
    case CUpointer_attribute::kRangeSize: return answer(value, allocation.size_bytes);
  }
  return CUresult::kInvalidValue;
}

CUresult pinned_attribute(Simulator& sim, void* value, CUpointer_attribute attribute, CUdeviceptr address,
                          const PinnedRange& range) {
  switch (attribute) {
    case CUpointer_attribute::kContext: return answer(value, sim.device_at(range.device)->context);
    case CUpointer_attribute::kMemoryType: return answer(value, CUmemorytype::kHost);
    case CUpointer_attribute::kDevicePointer: return answer(value, address);
    case CUpointer_attribute::kHostPointer: return answer(value, reinterpret_cast<void*>(address));
    case CUpointer_attribute::kIsManaged: return answer(value, 0u);
    case CUpointer_attribute::kDeviceOrdinal: return answer(value, range.device);
    case CUpointer_attribute::kRangeStartAddr: return answer(value, static_cast<CUdeviceptr>(range.address));
    case CUpointer_attribute::kRangeSize: return answer(value, range.size_bytes);
  }
  return CUresult::kInvalidValue;
}

}  // namespace

CUresult cuMemAlloc_v2(CUdeviceptr* address, std::size_t size_bytes) {
  return enter("cuMemAlloc_v2", kContext | kUnsafe, [&](Simulator& sim, Call& call) {
    if (address == nullptr || size_bytes == 0) return CUresult::kInvalidValue;
    if (const CUresult result = sim.spend(call, SWSIM_COST_DEVICE_ALLOC, size_bytes); result != CUresult::kSuccess) {
      return result;
    }
    const Device& device = *call.device;
    if (size_bytes > sim.free_bytes(device)) return CUresult::kOutOfMemory;
    const AllocationPtr allocation = sim.memory.allocate(device.ordinal, size_bytes);
    if (allocation == nullptr) return CUresult::kOutOfMemory;
    *address = allocation->address;
    return CUresult::kSuccess;
  });
}

CUresult cuMemFree_v2(CUdeviceptr address) {
  return enter("cuMemFree_v2", kContext | kUnsafe | kCleanup, [&](Simulator& sim, Call& call) {
    if (address == 0) return CUresult::kSuccess;
    const AllocationPtr allocation = sim.memory.find(address, 1);
    if (allocation == nullptr || allocation->address != address) return CUresult::kInvalidValue;
    sim.schedule.wait_for_device(call, *sim.device_at(allocation->device));  // as the real one does
    return sim.memory.free(address) ? CUresult::kSuccess : CUresult::kInvalidValue;
  });
}

CUresult cuMemGetInfo_v2(std::size_t* free_bytes, std::size_t* total_bytes) {
  return enter("cuMemGetInfo_v2", kContext, [&](Simulator& sim, Call& call) {
    if (free_bytes != nullptr) *free_bytes = sim.free_bytes(*call.device);
    if (total_bytes != nullptr) *total_bytes = call.device->config.memory_bytes;
    return CUresult::kSuccess;
  });
}

CUresult cuMemHostAlloc(void** memory, std::size_t size_bytes, unsigned int flags) {
  return enter("cuMemHostAlloc", kContext | kUnsafe, [&](Simulator& sim, Call& call) {
    if (memory == nullptr || size_bytes == 0 || flags > 7) return CUresult::kInvalidValue;
    if (const CUresult result = sim.spend(call, SWSIM_COST_HOST_ALLOC, size_bytes); result != CUresult::kSuccess) {
      return result;
    }
    void* const mapped = ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) return CUresult::kOutOfMemory;
    PinnedRange range{.address = reinterpret_cast<std::uintptr_t>(mapped),
                      .size_bytes = size_bytes,
                      .device = call.device->ordinal,
                      .portable = true,
                      .owned = Mapping(mapped, size_bytes)};
    if (!sim.host.add(std::move(range))) return CUresult::kUnknown;
    *memory = mapped;
    return CUresult::kSuccess;
  });
}

CUresult cuMemFreeHost(void* memory) {
  return enter("cuMemFreeHost", kContext | kUnsafe | kCleanup, [&](Simulator& sim, Call& call) {
    PinnedPtr range = sim.host.at(reinterpret_cast<std::uintptr_t>(memory));
    if (range == nullptr || range->owned.data() == nullptr) return CUresult::kInvalidValue;
    return unpin(sim, call, std::move(range));
  });
}

CUresult cuMemHostRegister_v2(void* memory, std::size_t size_bytes, unsigned int flags) {
  return enter("cuMemHostRegister_v2", kContext | kUnsafe, [&](Simulator& sim, Call& call) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory);
    if (memory == nullptr || size_bytes == 0 || flags > 15) return CUresult::kInvalidValue;
    if (sim.memory.find(address, 1) != nullptr || !is_mapped(address, size_bytes)) return CUresult::kInvalidValue;
    if (const CUresult result = sim.spend(call, SWSIM_COST_REGISTER, size_bytes); result != CUresult::kSuccess) {
      return result;
    }
    PinnedRange range{.address = address,
                      .size_bytes = size_bytes,
                      .device = call.device->ordinal,
                      .portable = (flags & kMemHostRegisterPortable) != 0,
                      .owned = {}};
    return sim.host.add(std::move(range)) ? CUresult::kSuccess : CUresult::kHostMemoryAlreadyRegistered;
  });
}

CUresult cuMemHostUnregister(void* memory) {
  return enter("cuMemHostUnregister", kContext | kUnsafe | kCleanup, [&](Simulator& sim, Call& call) {
    PinnedPtr range = sim.host.at(reinterpret_cast<std::uintptr_t>(memory));
    if (range == nullptr || range->owned.data() != nullptr) return CUresult::kHostMemoryNotRegistered;
    return unpin(sim, call, std::move(range));
  });
}

CUresult cuPointerGetAttribute(void* value, CUpointer_attribute attribute, CUdeviceptr address) {
  return enter("cuPointerGetAttribute", kContext, [&](Simulator& sim, Call&) {
    if (value == nullptr) return CUresult::kInvalidValue;
    if (const AllocationPtr allocation = sim.memory.find(address, 1); allocation != nullptr) {
      if (!allocation->mapped) return CUresult::kInvalidValue;
      return device_attribute(sim, value, attribute, address, *allocation);
    }
    const std::optional<PinnedPtr> range = sim.host.find(address, 1);
    if (!range.has_value() || *range == nullptr) return CUresult::kInvalidValue;  // memory the driver never heard of
    return pinned_attribute(sim, value, attribute, address, **range);
  });
}

}  // namespace slackwater::cuda
