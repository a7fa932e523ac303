// ZipReader: the records of a zip archive. It gives the bytes of those that are stored as they are, as torch.save
// stores all of its own. zip64 included.
// The bytes are untrusted: every offset is checked before it is used. Constant after open; any thread.
// Lifetime: the bytes outlive the reader.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "slackwater/error.hpp"

namespace slackwater::formats {

struct ZipRecord {
  std::string_view name;
  std::span<const std::byte> bytes;
  std::uint32_t crc = 0;
  bool packed = false;  // compressed or encrypted; `bytes` is then empty
};

class ZipReader {
 public:
  // kCorrupt says what is wrong.
  [[nodiscard]] static Result<ZipReader> open(std::span<const std::byte> archive, const std::string& path);

  [[nodiscard]] std::span<const ZipRecord> records() const { return records_; }
  [[nodiscard]] const ZipRecord* find(std::string_view name) const;

 private:
  std::vector<ZipRecord> records_;
  std::unordered_map<std::string_view, std::size_t> by_name_;
};

}  // namespace slackwater::formats
