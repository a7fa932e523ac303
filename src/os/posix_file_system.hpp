// PosixFileSystem: the FileSystem of the machine. Thread-safe; holds no state but a counter.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "os/file_system.hpp"

namespace slackwater {

class PosixFileSystem final : public FileSystem {
 public:
  [[nodiscard]] Result<std::unique_ptr<File>> open(const std::string& path, OpenMode mode, bool direct) override;
  [[nodiscard]] Status make_directory(const std::string& path) override;
  [[nodiscard]] Status sync_directory(const std::string& path) override;
  [[nodiscard]] Status link(const std::string& from, const std::string& to) override;
  [[nodiscard]] Status unlink(const std::string& path) override;
  [[nodiscard]] Status remove_directory(const std::string& path) override;
  [[nodiscard]] Result<std::vector<DirectoryEntry>> list(const std::string& path) override;
  [[nodiscard]] Result<FileStatus> status(const std::string& path) override;
  [[nodiscard]] Result<std::uint64_t> free_bytes(const std::string& path) override;
  [[nodiscard]] Result<std::unique_ptr<FileLock>> try_lock(const std::string& path) override;
  [[nodiscard]] Result<std::unique_ptr<IoQueue>> make_queue(const IoQueueOptions& options) override;

 private:
  std::atomic<std::uint64_t> next_serial_{1};  // of the Files; see PosixFile
};

}  // namespace slackwater
