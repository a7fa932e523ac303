// HidingFileSystem: a FileSystem for tests that shows everything another one has, but for what it was told to hide. As
// a host that does not see yet, or any more, what another has made. Thread-safe. Lifetime: the wrapped file system
// outlives it.
#pragma once

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "os/file_system.hpp"

namespace slackwater::test {

class HidingFileSystem final : public FileSystem {
 public:
  explicit HidingFileSystem(FileSystem& inner) : inner_(inner) {}

  // From now on whatever lies at a path with this in it is not there.
  void hide(std::string part) {
    const std::lock_guard lock(mutex_);
    hidden_ = std::move(part);
  }
  void show_all() { hide({}); }
  // Of those that would tell whether something is there, so far.
  [[nodiscard]] std::uint64_t calls() const { return calls_; }

  [[nodiscard]] Result<std::unique_ptr<File>> open(const std::string& path, OpenMode mode, bool direct) override {
    if (hides(path)) return slackwater::fail(gone(path));
    return inner_.open(path, mode, direct);
  }
  [[nodiscard]] Status make_directory(const std::string& path) override { return inner_.make_directory(path); }
  [[nodiscard]] Status sync_directory(const std::string& path) override { return inner_.sync_directory(path); }
  [[nodiscard]] Status link(const std::string& from, const std::string& to) override { return inner_.link(from, to); }
  [[nodiscard]] Status unlink(const std::string& path) override { return inner_.unlink(path); }
  [[nodiscard]] Status remove_directory(const std::string& path) override { return inner_.remove_directory(path); }
  [[nodiscard]] Result<std::vector<DirectoryEntry>> list(const std::string& path) override {
    if (hides(path)) return slackwater::fail(gone(path));
    auto entries = inner_.list(path);
    if (!entries) return entries;
    std::erase_if(*entries, [&](const DirectoryEntry& entry) { return hides(path + "/" + entry.name); });
    return entries;
  }
  [[nodiscard]] Result<FileStatus> status(const std::string& path) override {
    if (hides(path)) return slackwater::fail(gone(path));
    return inner_.status(path);
  }
  [[nodiscard]] Result<std::uint64_t> free_bytes(const std::string& path) override { return inner_.free_bytes(path); }
  [[nodiscard]] Result<std::unique_ptr<FileLock>> try_lock(const std::string& path) override {
    return inner_.try_lock(path);
  }
  [[nodiscard]] Result<std::unique_ptr<IoQueue>> make_queue(const IoQueueOptions& options) override {
    return inner_.make_queue(options);
  }

 private:
  static Error gone(const std::string& path) {
    return {ErrorKind::kNotFound, "no such file or directory", path, ENOENT};
  }
  [[nodiscard]] bool hides(const std::string& path) const {
    ++calls_;
    const std::lock_guard lock(mutex_);
    return !hidden_.empty() && path.find(hidden_) != std::string::npos;
  }

  FileSystem& inner_;
  mutable std::mutex mutex_;
  std::string hidden_;  // guarded by mutex_
  mutable std::atomic<std::uint64_t> calls_ = 0;
};

}  // namespace slackwater::test
