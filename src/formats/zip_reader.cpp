#include "formats/zip_reader.hpp"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "formats/zip_format.hpp"

namespace slackwater::formats {
namespace {

constexpr std::uint64_t kMaxComment = 0xffff;
constexpr std::uint64_t kMaxZipRecords = 4'000'000;

struct CentralDirectory {
  std::uint64_t offset = 0;
  std::uint64_t size_bytes = 0;
  std::uint64_t count = 0;
};

// Reads numbers at offsets that have been checked.
class ZipParser {
 public:
  ZipParser(std::span<const std::byte> archive, const std::string& path) : archive_(archive), path_(path) {}

  Result<CentralDirectory> find_directory() const {
    SW_ASSIGN(const std::uint64_t end, find_end());
    CentralDirectory directory{.offset = number<std::uint32_t>(end + 16),
                               .size_bytes = number<std::uint32_t>(end + 12),
                               .count = number<std::uint16_t>(end + 10)};
    // Numbers that do not fit are in a larger record, which a locator in front of this one points to.
    const bool has_locator = end >= kZip64LocatorBytes && signature(end - kZip64LocatorBytes) == kZip64Locator;
    if (has_locator) {
      const auto at = number<std::uint64_t>(end - kZip64LocatorBytes + 8);
      if (!fits_in(at, kZip64EndBytes, end) || signature(at) != kZip64End)
        return corrupt("its end does not lie where it says");
      directory = {.offset = number<std::uint64_t>(at + 48),
                   .size_bytes = number<std::uint64_t>(at + 40),
                   .count = number<std::uint64_t>(at + 32)};
    }
    if (!fits_in(directory.offset, directory.size_bytes, end)) return corrupt("its list of records lies outside of it");
    if (directory.count > std::min(kMaxZipRecords, directory.size_bytes / kZipEntryBytes))
      return corrupt("it claims {} records", directory.count);
    return directory;
  }

  // The record whose entry begins at `at`, which moves on to the next one.
  Result<ZipRecord> read_entry(std::uint64_t& at, const CentralDirectory& directory) const {
    const std::uint64_t end = directory.offset + directory.size_bytes;
    if (!fits_in(at, kZipEntryBytes, end) || signature(at) != kZipEntry)
      return corrupt("its list of records breaks off");
    const auto name_bytes = number<std::uint16_t>(at + 28);
    const auto extra_bytes = number<std::uint16_t>(at + 30);
    const auto comment_bytes = number<std::uint16_t>(at + 32);
    const std::uint64_t entry_bytes = kZipEntryBytes + name_bytes + extra_bytes + comment_bytes;
    if (!fits_in(at, entry_bytes, end)) return corrupt("its list of records breaks off");
    ZipRecord record{.name = text(at + kZipEntryBytes, name_bytes), .bytes = {}, .crc = number<std::uint32_t>(at + 16)};
    const auto flags = number<std::uint16_t>(at + 8);
    const auto method = number<std::uint16_t>(at + 10);
    std::uint64_t packed = number<std::uint32_t>(at + 20);
    std::uint64_t size = number<std::uint32_t>(at + 24);
    std::uint64_t header = number<std::uint32_t>(at + 42);
    SW_TRY(read_zip64(at + kZipEntryBytes + name_bytes, extra_bytes, size, packed, header));
    at += entry_bytes;
    record.packed = (flags & 1) != 0 || method != 0;
    if (record.packed) return record;
    if (packed != size) return corrupt("the record '{}' has two sizes", record.name);
    SW_ASSIGN(record.bytes, contents(record.name, header, size, directory.offset));
    return record;
  }

 private:
  template <class... Args>
  std::unexpected<Error> corrupt(fmt::format_string<Args...> format, Args&&... args) const {
    return fail(ErrorKind::kCorrupt,
                fmt::format("the zip archive is damaged: {}", fmt::format(format, std::forward<Args>(args)...)), path_);
  }

  template <class Number>
  Number number(std::uint64_t at) const {
    Number value;
    std::memcpy(&value, archive_.data() + at, sizeof value);
    return value;
  }
  std::uint32_t signature(std::uint64_t at) const { return number<std::uint32_t>(at); }
  std::string_view text(std::uint64_t at, std::uint64_t size) const {
    return {reinterpret_cast<const char*>(archive_.data()) + at, size};
  }
  static bool fits_in(std::uint64_t at, std::uint64_t size, std::uint64_t end) { return at <= end && size <= end - at; }

  // The last record of the archive. Only a comment may follow it.
  Result<std::uint64_t> find_end() const {
    if (archive_.size() < kZipEndBytes) return corrupt("it has only {} bytes", archive_.size());
    const std::uint64_t last = archive_.size() - kZipEndBytes;
    for (std::uint64_t back = 0; back <= std::min(last, kMaxComment); ++back)
      if (signature(last - back) == kZipEnd && number<std::uint16_t>(last - back + 20) == back) return last - back;
    return corrupt("its end is missing; the file may have been cut off");
  }

  // A size or offset of 2^32 - 1 means that the value is in the extra field, in this order.
  Status read_zip64(std::uint64_t at, std::uint64_t size, std::uint64_t& uncompressed, std::uint64_t& compressed,
                    std::uint64_t& header) const {
    const std::uint64_t end = at + size;
    while (end - at >= 4) {
      const auto id = number<std::uint16_t>(at);
      const auto field_bytes = number<std::uint16_t>(at + 2);
      at += 4;
      if (field_bytes > end - at) return corrupt("an extra field reaches beyond its record");
      std::uint64_t value_at = at;
      for (std::uint64_t* value : {&uncompressed, &compressed, &header}) {
        if (id != kZip64Extra || *value != kZip32Limit) continue;
        if (!fits_in(value_at, 8, at + field_bytes)) return corrupt("a 64-bit size is missing");
        *value = number<std::uint64_t>(value_at);
        value_at += 8;
      }
      at += field_bytes;
    }
    return {};
  }

  Result<std::span<const std::byte>> contents(std::string_view name, std::uint64_t header, std::uint64_t size,
                                              std::uint64_t end) const {
    if (!fits_in(header, kZipHeaderBytes, end) || signature(header) != kZipHeader)
      return corrupt("the record '{}' does not lie where the list says", name);
    const std::uint64_t begin =
        header + kZipHeaderBytes + number<std::uint16_t>(header + 26) + number<std::uint16_t>(header + 28);
    if (!fits_in(begin, size, end)) return corrupt("the record '{}' reaches beyond the archive", name);
    return archive_.subspan(begin, size);
  }

  const std::span<const std::byte> archive_;
  const std::string& path_;
};

}  // namespace

Result<ZipReader> ZipReader::open(std::span<const std::byte> archive, const std::string& path) {
  const ZipParser parser(archive, path);
  SW_ASSIGN(const CentralDirectory directory, parser.find_directory());
  ZipReader reader;
  std::uint64_t at = directory.offset;
  for (std::uint64_t i = 0; i < directory.count; ++i) {
    SW_ASSIGN(const ZipRecord record, parser.read_entry(at, directory));
    if (!reader.by_name_.try_emplace(record.name, reader.records_.size()).second) {
      return fail(ErrorKind::kCorrupt, fmt::format("the zip archive has the record '{}' twice", record.name), path);
    }
    reader.records_.push_back(record);
  }
  return reader;
}

const ZipRecord* ZipReader::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &records_[found->second];
}

}  // namespace slackwater::formats
