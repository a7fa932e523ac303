// PosixFile: a File on a descriptor, made by the POSIX FileSystem. Owner, thread rule and lifetime: file.hpp.
#pragma once

#include <cstdint>
#include <string>

#include "base/unique_fd.hpp"
#include "os/file.hpp"

struct stat;

namespace slackwater {

class PosixFile final : public File {
 public:
  // `serial` identifies the file for I/O queues. Unlike the descriptor, it is never reused in this process.
  PosixFile(UniqueFd descriptor, std::string path, std::uint64_t serial);

  [[nodiscard]] Result<std::uint64_t> read_at(std::span<std::byte> into, std::uint64_t offset) override;
  [[nodiscard]] Status write_at(std::span<const std::byte> bytes, std::uint64_t offset) override;
  [[nodiscard]] Status allocate(std::uint64_t size_bytes) override;
  [[nodiscard]] Status truncate(std::uint64_t size_bytes) override;
  [[nodiscard]] Status sync_data() override;
  [[nodiscard]] Status sync_all() override;
  [[nodiscard]] Status close() override;
  [[nodiscard]] Result<FileStatus> status() const override;
  [[nodiscard]] bool direct() const override { return direct_; }
  [[nodiscard]] Status set_direct(bool direct) override;
  [[nodiscard]] const std::string& path() const override { return path_; }
  [[nodiscard]] int descriptor() const override { return descriptor_.get(); }

  [[nodiscard]] std::uint64_t serial() const { return serial_; }

 private:
  UniqueFd descriptor_;
  const std::string path_;
  const std::uint64_t serial_;
  bool direct_ = false;
};

[[nodiscard]] FileType file_type_of(unsigned mode);  // from stat::st_mode
[[nodiscard]] FileStatus file_status_of(const struct stat& info);

}  // namespace slackwater
