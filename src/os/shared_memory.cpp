#include "os/shared_memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include <fmt/format.h>

#include "base/error.hpp"
#include "base/result.hpp"
#include "base/units.hpp"

namespace slackwater {
namespace {

constexpr std::uint64_t kHugePage = 2u << 20;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

}  // namespace

Result<UniqueFd> make_shared_memory(const char* name, std::uint64_t size_bytes) {
  UniqueFd memory(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory) return fail(error_from_errno(errno, "cannot make shared memory (memfd_create)"));
  if (::ftruncate(memory.get(), static_cast<off_t>(size_bytes)) != 0)
    return fail(error_from_errno(errno, fmt::format("cannot make {} of shared memory", format_bytes(size_bytes))));
  if (::fcntl(memory.get(), F_ADD_SEALS, kSeals) != 0)
    return fail(error_from_errno(errno, "cannot seal shared memory"));
  return memory;
}

Result<UniqueFd> reopen_read_only(const UniqueFd& memory) {
  const std::string path = fmt::format("/proc/self/fd/{}", memory.get());
  UniqueFd reader(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!reader) return fail(error_from_errno(errno, "cannot open shared memory for reading", path));
  return reader;
}

Result<std::shared_ptr<SharedMemory>> SharedMemory::map(const UniqueFd& descriptor, Access access) {
  struct stat info{};
  if (::fstat(descriptor.get(), &info) != 0) return fail(error_from_errno(errno, "cannot read the size of memory"));
  const int seals = ::fcntl(descriptor.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || info.st_size <= 0)
    return fail(ErrorKind::kCorrupt, "the memory that was passed is not sealed against shrinking");
  const auto size = static_cast<std::uint64_t>(info.st_size);
  // Reserves one huge page too much, maps over the aligned part of it, and gives back the ends.
  void* const reserved = ::mmap(nullptr, size + kHugePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (reserved == MAP_FAILED) return fail(error_from_errno(errno, "there is no address space for shared memory"));
  const auto address = reinterpret_cast<std::uintptr_t>(reserved);
  const std::uintptr_t begin = round_up(address, kHugePage);
  const int protection = access == Access::kWrite ? PROT_READ | PROT_WRITE : PROT_READ;
  void* const mapped =
      ::mmap(reinterpret_cast<void*>(begin), size, protection, MAP_SHARED | MAP_FIXED, descriptor.get(), 0);
  if (mapped == MAP_FAILED) {
    Error error = error_from_errno(errno, fmt::format("cannot map {} of shared memory", format_bytes(size)));
    ::munmap(reserved, size + kHugePage);
    return fail(std::move(error));
  }
  const std::uintptr_t end = begin + round_up(size, 4096);
  if (begin > address) ::munmap(reserved, begin - address);
  if (address + size + kHugePage > end)
    ::munmap(reinterpret_cast<void*>(end), round_up(address + size + kHugePage, 4096) - end);
  (void)::madvise(mapped, size, MADV_DONTFORK);
  return std::shared_ptr<SharedMemory>(new SharedMemory({static_cast<std::byte*>(mapped), size}));
}

SharedMemory::~SharedMemory() { ::munmap(bytes_.data(), bytes_.size()); }

}  // namespace slackwater
