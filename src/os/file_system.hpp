// FileSystem: every call to storage goes through this interface, so that tests can fail, delay and shorten it.
// Owner: the engine. Thread rule: thread-safe. Lifetime: outlives the files, locks and queues that it made.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "os/file.hpp"
#include "os/file_upload.hpp"
#include "os/io_queue.hpp"
#include "slackwater/error.hpp"

namespace slackwater {

enum class OpenMode : std::uint8_t {
  kRead,             // O_RDONLY | O_NOFOLLOW; kCorrupt if it is not a regular file; never blocks on a FIFO
  kCreateExclusive,  // O_RDWR | O_CREAT | O_EXCL
  kReadWrite,        // O_RDWR | O_NOFOLLOW, of a file that exists; kCorrupt as with kRead
};

struct DirectoryEntry {
  std::string name;
  FileType type = FileType::kOther;  // of the entry itself: a symbolic link is kOther
};

// A regular file somewhere below a directory.
struct FileEntry {
  std::string name;  // relative to that directory: "index", "g0003/rank-03072.record"
  std::uint64_t size_bytes = 0;
};

// Held until it is destroyed or the process dies. Forked children give it up at once.
class FileLock {
 public:
  virtual ~FileLock() = default;
  // For whom it keeps out: what its holder is doing, and what to do about that. Without this call, its holder is a run.
  virtual void explain(std::string_view /*doing*/, std::string_view /*remedy*/) {}
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // `direct` asks for O_DIRECT. If the file system refuses that, the file is buffered; File::direct() tells.
  [[nodiscard]] virtual Result<std::unique_ptr<File>> open(const std::string& path, OpenMode mode, bool direct) = 0;
  [[nodiscard]] virtual Status make_directory(const std::string& path) = 0;  // kAlreadyExists
  [[nodiscard]] virtual Status sync_directory(const std::string& path) = 0;
  [[nodiscard]] virtual Status link(const std::string& from, const std::string& to) = 0;  // kAlreadyExists
  [[nodiscard]] virtual Status unlink(const std::string& path) = 0;
  [[nodiscard]] virtual Status remove_directory(const std::string& path) = 0;
  [[nodiscard]] virtual Result<std::vector<DirectoryEntry>> list(const std::string& path) = 0;  // sorted by name
  [[nodiscard]] virtual Result<FileStatus> status(const std::string& path) = 0;                 // does not follow links
  // Every regular file in this directory and in its subdirectories, of which there is one level, with its size. Sorted
  // by name. In an object store this is one list. Unless it is overridden, the calls above are used.
  [[nodiscard]] virtual Result<std::vector<FileEntry>> list_files(const std::string& path);
  // The directory that a path leads to, in the same words for each of its names, through links and bind mounts. If it
  // does not exist yet: the nearest one above it, and the names below that. kUnsupported: nobody can tell.
  [[nodiscard]] virtual Result<std::string> identity(const std::string& path);
  [[nodiscard]] virtual Result<std::uint64_t> free_bytes(const std::string& path) = 0;
  // Non-blocking flock. Creates the file if it is missing. kBusy if somebody else holds the lock.
  [[nodiscard]] virtual Result<std::unique_ptr<FileLock>> try_lock(const std::string& path) = 0;
  [[nodiscard]] virtual Result<std::unique_ptr<IoQueue>> make_queue(const IoQueueOptions& options) = 0;
  // A large file that is copied here in parts, and that a later try can continue. Its directory must exist. Unless it
  // is overridden, the file is written in place by the calls above (DirectoryUpload).
  [[nodiscard]] virtual Result<std::unique_ptr<FileUpload>> begin_upload(const std::string& path,
                                                                         std::uint64_t size_bytes);
  // Uploads below this path that were begun and neither finished nor abandoned, wherever their writer is now.
  [[nodiscard]] virtual Result<std::vector<PendingUpload>> list_uploads(const std::string& /*path*/) {
    return std::vector<PendingUpload>();
  }
  [[nodiscard]] virtual Status abandon_upload(const PendingUpload& /*upload*/) { return {}; }

  // How many bytes of uploads the network has taken so far, those of parts under way too. It tells a slow tier from
  // one that stands still. 0 where nobody counts.
  [[nodiscard]] virtual std::uint64_t accepted_bytes() const { return 0; }

  // Forgets what it remembers about names. A file system that remembers none does nothing.
  virtual void refresh() {}
  // All that it remembers about names, for another process that reads the same place: learn_names() there. Empty: it
  // remembers none.
  [[nodiscard]] virtual Result<std::string> remembered_names() { return std::string(); }
  [[nodiscard]] virtual Status learn_names(std::string_view /*names*/) { return {}; }
  // Makes calls under way end soon, with kClosed, and later ones fail. For whoever must not wait for a slow network;
  // from any thread.
  virtual void stop_transfers() {}
};

// The machine's own file system. Its queues use io_uring if the kernel permits it, and worker threads otherwise.
[[nodiscard]] std::unique_ptr<FileSystem> make_posix_file_system();

}  // namespace slackwater
