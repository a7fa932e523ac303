// FileSystem: every call Slackwater makes to storage goes through here, so that tests can fail, delay and cut each of them.
// Thread rule: thread-safe. Lifetime: outlives the Files, locks and queues it made.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "os/file.hpp"
#include "os/io_queue.hpp"
#include "slackwater/error.hpp"

namespace slackwater {

enum class OpenMode : std::uint8_t {
  kRead,             // O_RDONLY | O_NOFOLLOW; kCorrupt if it is not a regular file (no blocking on a FIFO)
  kCreateExclusive,  // O_RDWR | O_CREAT | O_EXCL
};

struct DirectoryEntry {
  std::string name;
  FileType type = FileType::kOther;  // of the entry itself: a symbolic link is kOther
};

// Held until destroyed; released by the kernel when the process dies, and given up at once in forked children.
class FileLock {
 public:
  virtual ~FileLock() = default;
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // direct: asks for O_DIRECT; where the file system refuses it at open, the file is buffered (File::direct() tells).
  [[nodiscard]] virtual Result<std::unique_ptr<File>> open(const std::string& path, OpenMode mode, bool direct) = 0;
  [[nodiscard]] virtual Status make_directory(const std::string& path) = 0;  // kAlreadyExists
  [[nodiscard]] virtual Status sync_directory(const std::string& path) = 0;
  [[nodiscard]] virtual Status link(const std::string& from, const std::string& to) = 0;  // kAlreadyExists
  [[nodiscard]] virtual Status unlink(const std::string& path) = 0;
  [[nodiscard]] virtual Status remove_directory(const std::string& path) = 0;
  [[nodiscard]] virtual Result<std::vector<DirectoryEntry>> list(const std::string& path) = 0;  // sorted by name
  [[nodiscard]] virtual Result<FileStatus> status(const std::string& path) = 0;                 // does not follow links
  [[nodiscard]] virtual Result<std::uint64_t> free_bytes(const std::string& path) = 0;
  // Creates the file if missing; flock, non-blocking. kBusy when somebody else has it.
  [[nodiscard]] virtual Result<std::unique_ptr<FileLock>> try_lock(const std::string& path) = 0;
  [[nodiscard]] virtual Result<std::unique_ptr<IoQueue>> make_queue(const IoQueueOptions& options) = 0;
};

// The real one. io_uring where the kernel permits it, else worker threads with pread/pwrite.
[[nodiscard]] std::unique_ptr<FileSystem> make_posix_file_system();

}  // namespace slackwater
