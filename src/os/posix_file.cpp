#include "os/posix_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/error.hpp"
#include "base/result.hpp"
#include "os/transfer.hpp"

namespace slackwater {
namespace {

// Repeats a call that a signal interrupted before it did anything.
template <class Call>
int retry_interrupted(Call call) {
  int answer = 0;
  do {
    answer = call();
  } while (answer < 0 && errno == EINTR);
  return answer;
}

}  // namespace

FileType file_type_of(unsigned mode) {
  if (S_ISREG(mode)) return FileType::kRegular;
  if (S_ISDIR(mode)) return FileType::kDirectory;
  return FileType::kOther;
}

FileStatus file_status_of(const struct stat& info) {
  return {.type = file_type_of(info.st_mode),
          .size_bytes = static_cast<std::uint64_t>(info.st_size),
          .link_count = static_cast<std::uint64_t>(info.st_nlink)};
}

PosixFile::PosixFile(UniqueFd descriptor, std::string path, std::uint64_t serial)
    : descriptor_(std::move(descriptor)), path_(std::move(path)), serial_(serial) {}

Result<std::uint64_t> PosixFile::read_at(std::span<std::byte> into, std::uint64_t offset) {
  Transfer transfer(IoOp::kRead, into.size(), direct_);
  ssize_t answer = 0;
  do {
    answer = ::pread(descriptor_.get(), into.data() + transfer.piece_start(), transfer.piece_bytes(),
                     static_cast<off_t>(offset + transfer.piece_start()));
  } while (!transfer.advance(answer < 0 ? -errno : answer));
  return transfer.result(path_);
}

Status PosixFile::write_at(std::span<const std::byte> bytes, std::uint64_t offset) {
  Transfer transfer(IoOp::kWrite, bytes.size(), direct_);
  ssize_t answer = 0;
  do {
    answer = ::pwrite(descriptor_.get(), bytes.data() + transfer.piece_start(), transfer.piece_bytes(),
                      static_cast<off_t>(offset + transfer.piece_start()));
  } while (!transfer.advance(answer < 0 ? -errno : answer));
  SW_TRY(transfer.result(path_));
  return {};
}

Status PosixFile::allocate(std::uint64_t size_bytes) {
  if (size_bytes == 0) return {};
  const auto size = static_cast<off_t>(size_bytes);
  if (retry_interrupted([&] { return ::fallocate(descriptor_.get(), 0, 0, size); }) == 0) return {};
  // Some file systems cannot reserve space (NFS before 4.2, many FUSE). Then only the writes find out whether there is
  // space.
  if (errno == EOPNOTSUPP || errno == ENOSYS) return truncate(size_bytes);
  return fail(error_from_errno(errno, "cannot reserve space for the file", path_));
}

Status PosixFile::truncate(std::uint64_t size_bytes) {
  const auto size = static_cast<off_t>(size_bytes);
  return status_from_errno(retry_interrupted([&] { return ::ftruncate(descriptor_.get(), size); }),
                           "cannot set the length of the file", path_);
}

// Syncs are not retried, not even after EINTR. The kernel reports a lost write once and then forgets it, so a second
// sync that succeeds proves nothing.
Status PosixFile::sync_data() {
  return status_from_errno(::fdatasync(descriptor_.get()), "cannot sync the file; its contents count as lost", path_);
}

Status PosixFile::sync_all() {
  return status_from_errno(::fsync(descriptor_.get()), "cannot sync the file; its contents count as lost", path_);
}

Status PosixFile::close() {
  const int sys_errno = descriptor_.close();
  if (sys_errno == 0) return {};
  return fail(error_from_errno(sys_errno, "cannot close the file; its contents count as lost", path_));
}

Result<FileStatus> PosixFile::status() const {
  struct stat info{};
  if (::fstat(descriptor_.get(), &info) != 0) {
    return fail(error_from_errno(errno, "cannot read the status of the file", path_));
  }
  return file_status_of(info);
}

Status PosixFile::set_direct(bool direct) {
  const int flags = ::fcntl(descriptor_.get(), F_GETFL);
  if (flags < 0 || ::fcntl(descriptor_.get(), F_SETFL, direct ? flags | O_DIRECT : flags & ~O_DIRECT) != 0) {
    return fail(error_from_errno(errno, direct ? "cannot turn direct I/O on" : "cannot turn direct I/O off", path_));
  }
  direct_ = direct;
  return {};
}

}  // namespace slackwater
