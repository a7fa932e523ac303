// File: one open file.
// Owner: whoever opened it. Thread rule: several threads may use a File at once, except that close() and set_direct()
// need it to themselves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "slackwater/error.hpp"

namespace slackwater {

inline constexpr std::uint64_t kDirectAlignment = 4096;  // of address, offset and length with O_DIRECT

enum class FileType : std::uint8_t { kRegular, kDirectory, kOther };

struct FileStatus {
  FileType type = FileType::kOther;
  std::uint64_t size_bytes = 0;
  std::uint64_t link_count = 0;  // how many names the file has
};

class File {
 public:
  virtual ~File() = default;  // closes, but ignores errors: writers must call close()

  // Reads until the span is full or the file ends. Handles EINTR and short reads. Returns the number of bytes read.
  [[nodiscard]] virtual Result<std::uint64_t> read_at(std::span<std::byte> into, std::uint64_t offset) = 0;
  // For a file whose bytes are in memory: those from `offset` on, at least to the end of their block (kBlockBytes).
  // They stay there as long as the file is open. Empty: use read_at().
  [[nodiscard]] virtual std::span<const std::byte> in_place(std::uint64_t /*offset*/) const { return {}; }
  [[nodiscard]] virtual Status write_at(std::span<const std::byte> bytes, std::uint64_t offset) = 0;
  [[nodiscard]] virtual Status allocate(std::uint64_t size_bytes) = 0;  // fallocate, mode 0
  [[nodiscard]] virtual Status truncate(std::uint64_t size_bytes) = 0;
  [[nodiscard]] virtual Status sync_data() = 0;
  [[nodiscard]] virtual Status sync_all() = 0;
  [[nodiscard]] virtual Status close() = 0;  // idempotent; never retried
  [[nodiscard]] virtual Result<FileStatus> status() const = 0;

  [[nodiscard]] virtual bool direct() const = 0;
  [[nodiscard]] virtual Status set_direct(bool direct) = 0;  // fcntl(F_SETFL)

  [[nodiscard]] virtual const std::string& path() const = 0;
  [[nodiscard]] virtual int descriptor() const = 0;  // for the I/O queue of the same FileSystem
};

}  // namespace slackwater
