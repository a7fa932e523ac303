#include "sim/device_memory.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/unique_fd.hpp"

namespace slackwater::sim {
namespace {

constexpr std::size_t kFreedAddressesKept = 1024;

std::size_t round_to_pages(std::size_t size_bytes) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return (size_bytes + page - 1) / page * page;
}

}  // namespace

Mapping::Mapping(Mapping&& other) noexcept
    : address_(std::exchange(other.address_, nullptr)), size_bytes_(std::exchange(other.size_bytes_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(address_, other.address_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

Mapping::~Mapping() {
  if (address_ != nullptr) ::munmap(address_, size_bytes_);
}

AllocationPtr DeviceMemory::allocate(int device, std::size_t size_bytes) {
  const auto fits = [&](const AllocationPtr& old) { return old->device == device && old->size_bytes == size_bytes; };
  if (const auto old = std::ranges::find_if(reusable_, fits); old != reusable_.end()) {
    AllocationPtr again = std::move(*old);
    reusable_.erase(old);
    live_.emplace(again->address, again);
    return again;
  }
  const std::size_t mapped = round_to_pages(size_bytes);
  if (mapped < size_bytes) return nullptr;
  const std::string name = "swsim-device-" + std::to_string(device);
  const UniqueFd file(::memfd_create(name.c_str(), MFD_CLOEXEC));
  if (!file || ::ftruncate(file.get(), static_cast<off_t>(mapped)) != 0) return nullptr;

  auto allocation = std::make_shared<Allocation>();
  void* const reserved = ::mmap(nullptr, mapped, PROT_NONE, MAP_SHARED, file.get(), 0);
  if (reserved == MAP_FAILED) return nullptr;
  allocation->reserved = Mapping(reserved, mapped);
  void* const alias = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (alias == MAP_FAILED) return nullptr;
  allocation->alias = Mapping(alias, mapped);
  (void)::madvise(alias, mapped, MADV_DONTFORK);  // a forked child has no device

  allocation->device = device;
  allocation->address = reinterpret_cast<cuda::CUdeviceptr>(reserved);
  allocation->size_bytes = size_bytes;
  live_.emplace(allocation->address, allocation);
  return allocation;
}

AllocationPtr DeviceMemory::find(cuda::CUdeviceptr address, std::size_t size_bytes) const {
  auto after = live_.upper_bound(address);
  if (after == live_.begin()) return nullptr;
  const AllocationPtr& candidate = std::prev(after)->second;
  const std::size_t offset = address - candidate->address;
  if (offset >= candidate->size_bytes || size_bytes > candidate->size_bytes - offset) return nullptr;
  return candidate;
}

bool DeviceMemory::free(cuda::CUdeviceptr address) {
  const auto found = live_.find(address);
  if (found == live_.end()) return false;
  retire(found);
  return true;
}

bool DeviceMemory::free_for_reuse(cuda::CUdeviceptr address) {
  const auto found = live_.find(address);
  if (found == live_.end()) return false;
  reusable_.push_back(found->second);
  live_.erase(found);
  return true;
}

void DeviceMemory::forget_freed() {
  freed_.clear();
  reusable_.clear();
}

std::uint64_t DeviceMemory::free_all_of(int device) {
  std::erase_if(reusable_, [device](const AllocationPtr& old) { return old->device == device; });
  std::uint64_t freed = 0;
  for (auto entry = live_.begin(); entry != live_.end();) {
    if (entry->second->device != device) {
      ++entry;
      continue;
    }
    entry = retire(entry);
    ++freed;
  }
  return freed;
}

DeviceMemory::Live::iterator DeviceMemory::retire(Live::iterator entry) {
  Mapping& reserved = entry->second->reserved;
  // Keep the address, but free its memory.
  const void* const emptied = ::mmap(reserved.data(), reserved.size_bytes(), PROT_NONE,
                                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  if (emptied != MAP_FAILED) freed_.push_back(std::move(reserved));
  if (freed_.size() > kFreedAddressesKept) freed_.pop_front();
  return live_.erase(entry);
}

bool DeviceMemory::was_freed(cuda::CUdeviceptr address) const {
  const auto holds = [address](const Mapping& mapping) {
    const auto begin = reinterpret_cast<cuda::CUdeviceptr>(mapping.data());
    return begin <= address && address - begin < mapping.size_bytes();
  };
  return std::ranges::any_of(freed_, holds) ||
         std::ranges::any_of(reusable_, [&](const AllocationPtr& old) { return holds(old->reserved); });
}

std::uint64_t DeviceMemory::used_bytes(int device) const {
  std::uint64_t used = 0;
  for (const auto& [address, allocation] : live_) {
    if (allocation->device == device && allocation->mapped) used += allocation->size_bytes;
  }
  return used;
}

}  // namespace slackwater::sim
