#include "formats/mapped_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <utility>

#include "base/error.hpp"
#include "base/unique_fd.hpp"

namespace slackwater::formats {

MappedFile::MappedFile(std::span<const std::byte> bytes, std::string path) : bytes_(bytes), path_(std::move(path)) {}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : bytes_(std::exchange(other.bytes_, {})), path_(std::move(other.path_)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  std::swap(path_, other.path_);
  return *this;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

Result<MappedFile> MappedFile::open(const std::string& path) {
  // Links are followed: a hub's cache consists of them.
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) return fail(error_from_errno(errno, "cannot open the file", path));
  struct stat found{};
  if (::fstat(file.get(), &found) != 0) return fail(error_from_errno(errno, "cannot look at the file", path));
  if (!S_ISREG(found.st_mode)) return fail(ErrorKind::kCorrupt, "this is not a regular file", path);
  const auto size = static_cast<std::size_t>(found.st_size);
  if (size == 0) return MappedFile({}, path);
  void* const memory = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (memory == MAP_FAILED) return fail(error_from_errno(errno, "cannot map the file", path));
  ::madvise(memory, size, MADV_SEQUENTIAL);  // reads ahead, and lets go of what was read
  return MappedFile({static_cast<const std::byte*>(memory), size}, path);
}

}  // namespace slackwater::formats
