// Files of an ObjectFileSystem. ObjectFile reads one object by ranged GETs. SmallFile collects the bytes of a new
// object in memory and writes it with one request when it is synced, or at the latest when it is closed.
// Owner and thread rule: as in os/file.hpp.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>

#include "os/file.hpp"
#include "store/s3/object_file_system.hpp"

namespace slackwater::s3 {

class ObjectFile final : public File {
 public:
  ObjectFile(ObjectFileSystem& fs, std::string path, std::string key, std::uint64_t size_bytes);

  [[nodiscard]] Result<std::uint64_t> read_at(std::span<std::byte> into, std::uint64_t offset) override;
  [[nodiscard]] Status write_at(std::span<const std::byte> bytes, std::uint64_t offset) override;
  [[nodiscard]] Status allocate(std::uint64_t size_bytes) override;
  [[nodiscard]] Status truncate(std::uint64_t size_bytes) override;
  [[nodiscard]] Status sync_data() override { return {}; }
  [[nodiscard]] Status sync_all() override { return {}; }
  [[nodiscard]] Status close() override { return {}; }
  [[nodiscard]] Result<FileStatus> status() const override { return FileStatus{FileType::kRegular, size_bytes_, 1}; }
  [[nodiscard]] bool direct() const override { return false; }
  [[nodiscard]] Status set_direct(bool /*direct*/) override { return {}; }
  [[nodiscard]] const std::string& path() const override { return path_; }
  [[nodiscard]] int descriptor() const override { return -1; }

 private:
  ObjectFileSystem& fs_;
  const std::string path_;
  const std::string key_;
  const std::uint64_t size_bytes_;
};

class SmallFile final : public File {
 public:
  // With bytes: one that is in memory only, to be read.
  SmallFile(ObjectFileSystem& fs, std::string path, std::string key, std::string bytes, FileStatus status,
            bool writable);

  [[nodiscard]] Result<std::uint64_t> read_at(std::span<std::byte> into, std::uint64_t offset) override;
  [[nodiscard]] Status write_at(std::span<const std::byte> bytes, std::uint64_t offset) override;
  [[nodiscard]] Status allocate(std::uint64_t /*size_bytes*/) override { return {}; }
  [[nodiscard]] Status truncate(std::uint64_t size_bytes) override;
  [[nodiscard]] Status sync_data() override { return sync_all(); }
  [[nodiscard]] Status sync_all() override;
  [[nodiscard]] Status close() override { return sync_all(); }
  [[nodiscard]] Result<FileStatus> status() const override;
  [[nodiscard]] bool direct() const override { return false; }
  [[nodiscard]] Status set_direct(bool /*direct*/) override { return {}; }
  [[nodiscard]] const std::string& path() const override { return path_; }
  [[nodiscard]] int descriptor() const override { return -1; }

 private:
  ObjectFileSystem& fs_;
  const std::string path_;
  const std::string key_;
  const std::uint64_t link_count_;
  mutable std::mutex mutex_;
  std::string bytes_;    // guarded by mutex_
  bool unsent_ = false;  // guarded by mutex_: written to, or new, since the last sync
  bool sent_ = false;    // guarded by mutex_: the object is there; it cannot change any more
};

}  // namespace slackwater::s3
