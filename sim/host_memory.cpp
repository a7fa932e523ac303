#include "sim/host_memory.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace slackwater::sim {
namespace {

std::uintptr_t page_bytes() { return static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE)); }
std::uintptr_t first_page(std::uintptr_t address) { return address & ~(page_bytes() - 1); }
std::uintptr_t end_page(std::uintptr_t address, std::size_t size_bytes) {
  return first_page(address + size_bytes + page_bytes() - 1);
}

}  // namespace

bool HostMemory::add(PinnedRange range) {
  const std::uintptr_t begin = first_page(range.address);
  const std::uintptr_t end = end_page(range.address, range.size_bytes);
  for (const auto& [address, other] : ranges_) {
    if (first_page(address) < end && begin < end_page(address, other->size_bytes)) return false;
  }
  const std::uintptr_t address = range.address;
  ranges_.emplace(address, std::make_shared<const PinnedRange>(std::move(range)));
  return true;
}

PinnedPtr HostMemory::at(std::uintptr_t address) const {
  const auto found = ranges_.find(address);
  return found == ranges_.end() ? nullptr : found->second;
}

std::uint64_t HostMemory::remove_all_of(int device) {
  return std::erase_if(ranges_, [device](const auto& entry) { return entry.second->device == device; });
}

std::optional<PinnedPtr> HostMemory::find(std::uintptr_t address, std::size_t size_bytes) const {
  const auto after = ranges_.upper_bound(address);
  if (after != ranges_.begin()) {
    const PinnedPtr& before = std::prev(after)->second;
    const std::uintptr_t end = before->address + before->size_bytes;
    if (address + size_bytes <= end) return before;
    if (address < end) return std::nullopt;
  }
  if (after != ranges_.end() && after->first < address + size_bytes) return std::nullopt;
  return PinnedPtr();
}

std::uint64_t HostMemory::pinned_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [address, range] : ranges_) bytes += range->size_bytes;
  return bytes;
}

bool is_mapped(std::uintptr_t address, std::size_t size_bytes) {
  constexpr std::size_t kPagesAtOnce = 4096;
  std::vector<unsigned char> resident(kPagesAtOnce);
  const std::uintptr_t end = end_page(address, size_bytes);
  for (std::uintptr_t page = first_page(address); page < end; page += kPagesAtOnce * page_bytes()) {
    const std::size_t bytes = std::min<std::uintptr_t>(end - page, kPagesAtOnce * page_bytes());
    if (::mincore(reinterpret_cast<void*>(page), bytes, resident.data()) != 0) return false;  // ENOMEM: a hole
  }
  return true;
}

}  // namespace slackwater::sim
