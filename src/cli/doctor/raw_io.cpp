#include "cli/doctor/raw_io.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <functional>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "base/result.hpp"
#include "base/thread.hpp"
#include "base/unique_fd.hpp"
#include "cli/doctor/settings.hpp"

namespace slackwater::cli::doctor {
namespace {

// Requests in flight, as many bytes as the engine's: its writes are whole slabs, its reads a quarter of one.
constexpr std::size_t kWrites = 16;
constexpr std::size_t kReads = 8;

// File systems without O_DIRECT are measured through the page cache, as the engine writes to them.
Result<UniqueFd> open_raw(const std::string& path, int flags) {
  UniqueFd file(::open(path.c_str(), flags | O_DIRECT | O_CLOEXEC, 0644));
  if (!file && errno == EINVAL) {
    ::unlink(path.c_str());  // O_CREAT may have made it before O_DIRECT was refused
    file = UniqueFd(::open(path.c_str(), flags | O_CLOEXEC, 0644));
  }
  if (!file) return fail(error_from_errno(errno, "cannot open a file for raw I/O", path));
  return file;
}

// Calls `move` (pread or pwrite) until every byte has moved. Each thread has its own pieces of the buffer, in turn.
Status move_all(std::size_t total, const std::string& path, std::span<std::byte> buffer, std::size_t in_flight,
                const std::function<ssize_t(std::byte* memory, std::size_t size, std::size_t offset)>& move) {
  std::atomic<std::size_t> next = 0;
  std::atomic<int> failed = 0;
  const std::size_t pieces = buffer.size() / kRawRequestBytes;
  const std::size_t count = std::min(in_flight, pieces);
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < count; ++i) {
      threads.push_back(start_thread("doctor-raw", [&, i](const std::stop_token&) {
        for (std::size_t piece = i; failed == 0; piece = piece + count < pieces ? piece + count : i) {
          std::size_t at = next.fetch_add(kRawRequestBytes);
          const std::size_t end = std::min(at + kRawRequestBytes, total);
          while (at < end && failed == 0) {
            const ssize_t moved = move(buffer.data() + piece * kRawRequestBytes, end - at, at);
            if (moved > 0) at += static_cast<std::size_t>(moved);
            if (moved == 0) failed = EIO;  // the file ended too early
            if (moved < 0 && errno != EINTR && errno != EAGAIN) failed = errno;
          }
          if (end >= total) break;
        }
      }));
    }
  }
  if (failed != 0) return fail(error_from_errno(failed, "raw I/O failed", path));
  return {};
}

}  // namespace

Result<double> write_raw(const std::string& path, std::size_t size_bytes, std::span<std::byte> buffer) {
  const Stopwatch watch;
  SW_ASSIGN(UniqueFd file, open_raw(path, O_RDWR | O_CREAT | O_EXCL));
  // Not every file system can allocate ahead. Then the writes allocate.
  if (::fallocate(file.get(), 0, 0, static_cast<off_t>(size_bytes)) != 0 && errno != EOPNOTSUPP)
    return fail(error_from_errno(errno, "cannot allocate a file for raw I/O", path));
  SW_TRY(move_all(size_bytes, path, buffer, kWrites, [&](std::byte* memory, std::size_t size, std::size_t offset) {
    return ::pwrite(file.get(), memory, size, static_cast<off_t>(offset));
  }));
  if (::fdatasync(file.get()) != 0) return fail(error_from_errno(errno, "cannot sync a file of raw I/O", path));
  if (const int sys_errno = file.close(); sys_errno != 0)
    return fail(error_from_errno(sys_errno, "cannot close a file of raw I/O", path));
  return watch.seconds();
}

Result<double> read_raw(const std::string& path, std::size_t size_bytes, std::span<std::byte> buffer) {
  const Stopwatch watch;
  // Not open_raw(): it may remove the file.
  UniqueFd file(::open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
  if (!file && errno == EINVAL) file = UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return fail(error_from_errno(errno, "cannot open a file for raw I/O", path));
  SW_TRY(move_all(size_bytes, path, buffer, kReads, [&](std::byte* memory, std::size_t size, std::size_t offset) {
    return ::pread(file.get(), memory, size, static_cast<off_t>(offset));
  }));
  (void)file.close();
  return watch.seconds();
}

}  // namespace slackwater::cli::doctor
