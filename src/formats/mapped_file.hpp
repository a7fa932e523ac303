// MappedFile: a file to import, mapped read-only. Its pages come and go with the page cache, so a file of any size
// takes no memory that could not be given back.
// Move-only. Lifetime: what points into bytes() must not outlive it. A file that shrinks while it is mapped, or a disk
// that cannot be read, ends the process with SIGBUS: the verb that imports turns that into a message.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "slackwater/error.hpp"

namespace slackwater::formats {

class MappedFile {
 public:
  // kCorrupt if it is not a regular file; never blocks on a FIFO.
  [[nodiscard]] static Result<MappedFile> open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  MappedFile(std::span<const std::byte> bytes, std::string path);
  std::span<const std::byte> bytes_;
  std::string path_;
};

}  // namespace slackwater::formats
