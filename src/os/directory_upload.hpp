// DirectoryUpload: a FileUpload into a directory. The file is written in place, with O_DIRECT where that is possible.
// That is safe because a version is visible only through its manifest, which comes after all of its files. The order:
//   create exclusively (or open what an earlier try left) -> allocate one byte too much -> [parts] -> fdatasync
//   -> exact length -> fdatasync -> close -> fsync of the directory
// So a file of the exact length has all of its bytes, even after a power cut. That matters if something vouches for the
// file already: a version may have lost one file and still have the record, or even the manifest.
// What an earlier try left is compared with the bytes that are sent, and only what differs is written. So a crash, a
// power cut, or another process that sends the same file at the same time does no harm.
// Owner, thread rule and lifetime: as FileUpload.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "os/file_system.hpp"

namespace slackwater {

class DirectoryUpload final : public FileUpload {
 public:
  static constexpr std::uint64_t kPartBytes = 8u << 20;

  [[nodiscard]] static Result<std::unique_ptr<FileUpload>> begin(FileSystem& fs, const std::string& path,
                                                                 std::uint64_t size_bytes);

  [[nodiscard]] std::uint64_t part_bytes() const override { return kPartBytes; }
  [[nodiscard]] Status send(std::uint32_t part, ByteSource& source) override;
  [[nodiscard]] Status finish() override;
  [[nodiscard]] Status abandon() override;

 private:
  DirectoryUpload(FileSystem& fs, std::unique_ptr<File> file, std::uint64_t size_bytes, bool resumed);
  [[nodiscard]] Status put(std::span<const std::byte> bytes, std::uint64_t offset);
  [[nodiscard]] Status put_changed(std::span<const std::byte> bytes, std::uint64_t offset);

  FileSystem& fs_;
  const std::unique_ptr<File> file_;
  const std::uint64_t size_bytes_;
  const bool resumed_;
  std::vector<std::byte> tail_;  // the end of the file, which direct writes cannot write; set by the last part
};

}  // namespace slackwater
