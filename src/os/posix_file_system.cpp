#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/error.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "os/file_system.hpp"
#include "os/posix_file.hpp"
#include "os/posix_lock.hpp"
#include "os/thread_queue.hpp"
#include "os/uring_queue.hpp"

namespace slackwater {
namespace {

struct DirectoryCloser {
  void operator()(DIR* directory) const { ::closedir(directory); }
};

Result<FileType> entry_type(DIR* directory, const dirent& entry, const std::string& path) {
  switch (entry.d_type) {
    case DT_REG: return FileType::kRegular;
    case DT_DIR: return FileType::kDirectory;
    case DT_UNKNOWN: break;  // this file system does not tell; ask for each entry
    default: return FileType::kOther;
  }
  struct stat info{};
  if (::fstatat(::dirfd(directory), entry.d_name, &info, AT_SYMLINK_NOFOLLOW) == 0) return file_type_of(info.st_mode);
  return fail(error_from_errno(errno, "cannot read the status of the file", path + "/" + entry.d_name));
}

// The directory above and the name in it: "/a/b/" is b in "/a". One without a directory above it is in ".".
std::pair<std::string, std::string> split(const std::string& path) {
  const std::size_t end = path.find_last_not_of('/') + 1;  // 0: "/", or nothing
  const std::size_t slash = end == 0 ? std::string::npos : path.rfind('/', end - 1);
  const std::size_t name = slash == std::string::npos ? 0 : slash + 1;
  std::string above = slash == std::string::npos ? "." : path.substr(0, std::max<std::size_t>(slash, 1));
  return {std::move(above), path.substr(name, end - name)};
}

// What the symbolic link leads to; nothing if it is none.
std::string target_of(const std::string& path) {
  std::array<char, PATH_MAX> target{};
  const ssize_t size = ::readlink(path.c_str(), target.data(), target.size());
  if (size <= 0) return {};
  std::string words(target.data(), static_cast<std::size_t>(size));
  return words.starts_with('/') ? words : split(path).first + "/" + words;
}

bool refused_as_not_regular(int sys_errno) {
  return sys_errno == ELOOP || sys_errno == ENXIO || sys_errno == ENODEV;  // symbolic link, socket, device
}

int open_flags(OpenMode mode) {
  // O_NONBLOCK: if somebody planted a FIFO, the open must not wait for its writer.
  constexpr int kExisting = O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  switch (mode) {
    case OpenMode::kRead: return O_RDONLY | kExisting;
    case OpenMode::kReadWrite: return O_RDWR | kExisting;
    case OpenMode::kCreateExclusive: break;
  }
  return O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC;
}

class PosixFileSystem final : public FileSystem {
 public:
  Result<std::unique_ptr<File>> open(const std::string& path, OpenMode mode, bool direct) override {
    const bool exists = mode != OpenMode::kCreateExclusive;
    UniqueFd descriptor(::open(path.c_str(), open_flags(mode), 0666));
    if (!descriptor) {
      if (exists && refused_as_not_regular(errno)) {
        return fail(ErrorKind::kCorrupt, "expected a regular file, found something else", path);
      }
      return fail(error_from_errno(errno, exists ? "cannot open the file" : "cannot create the file", path));
    }
    const int number = descriptor.get();
    auto file =
        std::make_unique<PosixFile>(std::move(descriptor), path, next_serial_.fetch_add(1, std::memory_order_relaxed));
    if (exists) {
      SW_ASSIGN(const FileStatus found, file->status());
      if (found.type != FileType::kRegular) {
        return fail(ErrorKind::kCorrupt, "expected a regular file, found something else", path);
      }
      // Regular files become blocking again. With O_NONBLOCK, io_uring answers EAGAIN instead of waiting.
      if (::fcntl(number, F_SETFL, 0) != 0)
        return fail(error_from_errno(errno, "cannot set the flags of the file", path));
    }
    // Ask for direct I/O after the open. An open that creates the file and is then refused O_DIRECT would leave the
    // file behind. If it is refused here, the file stays buffered.
    if (direct) (void)file->set_direct(true);
    return file;
  }

  Status make_directory(const std::string& path) override {
    return status_from_errno(::mkdir(path.c_str(), 0777), "cannot create the directory", path);
  }

  Status sync_directory(const std::string& path) override {
    UniqueFd directory(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!directory) return fail(error_from_errno(errno, "cannot open the directory to sync it", path));
    // EINVAL: this file system cannot sync directories, so there is nothing that could be made safer.
    if (::fsync(directory.get()) != 0 && errno != EINVAL) {
      return fail(error_from_errno(errno, "cannot sync the directory", path));
    }
    return {};
  }

  Status link(const std::string& from, const std::string& to) override {
    if (::link(from.c_str(), to.c_str()) == 0) return {};
    const bool no_links = errno == EPERM || errno == EOPNOTSUPP || errno == ENOSYS;
    return fail(error_from_errno(
        errno, no_links ? "cannot link the file; use a file system that has hard links" : "cannot link the file", to));
  }

  Status unlink(const std::string& path) override {
    return status_from_errno(::unlink(path.c_str()), "cannot remove the file", path);
  }

  Status remove_directory(const std::string& path) override {
    return status_from_errno(::rmdir(path.c_str()), "cannot remove the directory", path);
  }

  Result<std::vector<DirectoryEntry>> list(const std::string& path) override {
    const std::unique_ptr<DIR, DirectoryCloser> directory(::opendir(path.c_str()));
    if (!directory) return fail(error_from_errno(errno, "cannot list the directory", path));
    std::vector<DirectoryEntry> entries;
    for (;;) {
      errno = 0;
      const dirent* entry = ::readdir(directory.get());
      if (entry == nullptr) break;
      const std::string_view name = entry->d_name;
      if (name == "." || name == "..") continue;
      const Result<FileType> type = entry_type(directory.get(), *entry, path);
      if (!type && type.error().sys_errno == ENOENT) continue;  // somebody has just removed it
      if (!type) return fail(type.error());
      entries.push_back({std::string(name), *type});
    }
    if (errno != 0) return fail(error_from_errno(errno, "cannot list the directory", path));
    std::ranges::sort(entries, {}, &DirectoryEntry::name);
    return entries;
  }

  Result<FileStatus> status(const std::string& path) override {
    struct stat info{};
    if (::lstat(path.c_str(), &info) != 0)
      return fail(error_from_errno(errno, "cannot read the status of the file", path));
    return file_status_of(info);
  }

  Result<std::uint64_t> free_bytes(const std::string& path) override {
    struct statvfs info{};
    if (::statvfs(path.c_str(), &info) != 0)
      return fail(error_from_errno(errno, "cannot determine the free space", path));
    return static_cast<std::uint64_t>(info.f_bavail) * info.f_frsize;
  }

  Result<std::string> identity(const std::string& path) override {
    constexpr int kMostLinks = 40;  // as the kernel follows
    std::string found = path;
    std::string below;
    for (int links = 0;;) {
      struct stat info{};
      if (::stat(found.c_str(), &info) == 0) {
        // Some file systems in user space number nothing.
        if (info.st_ino == 0) return FileSystem::identity(path);
        return fmt::format("{}:{}{}", info.st_dev, info.st_ino, below);
      }
      if (errno != ENOENT) return fail(error_from_errno(errno, "cannot look at the directory", path));
      // A link may lead to a directory that does not exist yet.
      if (std::string target = target_of(found); !target.empty() && links++ < kMostLinks) {
        found = std::move(target);
        continue;
      }
      auto [above, name] = split(found);
      if (name.empty()) return fail(error_from_errno(ENOENT, "cannot look at the directory", path));
      below = "/" + name + below;
      found = std::move(above);
    }
  }

  Result<std::unique_ptr<FileLock>> try_lock(const std::string& path) override { return PosixLock::acquire(path); }

  Result<std::unique_ptr<IoQueue>> make_queue(const IoQueueOptions& options) override {
    if (options.depth == 0) return fail(ErrorKind::kInvalidArgument, "an I/O queue needs a depth of at least 1");
    if (options.force_threads) return ThreadQueue::create(options, {});
    auto uring = UringQueue::create(options);
    if (uring) return uring;
    // Containers and hardened hosts forbid io_uring (seccomp, io_uring_disabled). Old kernels lack parts of it.
    return ThreadQueue::create(options, uring.error().to_string());
  }

 private:
  std::atomic<std::uint64_t> next_serial_{1};  // for PosixFile
};

}  // namespace

std::unique_ptr<FileSystem> make_posix_file_system() { return std::make_unique<PosixFileSystem>(); }

}  // namespace slackwater
