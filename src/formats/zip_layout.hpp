// ZipLayout: where each record of a zip archive goes, before a byte is written. Records are stored uncompressed, and
// the data of each begins at a multiple of 64 bytes from the start of the archive, as torch expects. zip64 where
// needed.
// One thread; plain values.
//
//   layout.add("archive/data.pkl", size);  ...           the sizes are known
//   layout.finish();
//   write each record at data_offset(i), and header(i, crc) at header_offset(i); write tail(crcs) at tail_offset()
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace slackwater::formats {

inline constexpr std::uint64_t kRecordAlignment = 64;

class ZipLayout {
 public:
  // Returns the record's number.
  std::size_t add(std::string name, std::uint64_t size_bytes);
  void finish();  // after the last record

  [[nodiscard]] std::size_t count() const { return records_.size(); }
  [[nodiscard]] std::uint64_t header_offset(std::size_t record) const { return records_[record].header; }
  [[nodiscard]] std::uint64_t data_offset(std::size_t record) const { return records_[record].data; }
  [[nodiscard]] std::uint64_t record_bytes(std::size_t record) const { return records_[record].size_bytes; }
  [[nodiscard]] std::string header(std::size_t record, std::uint32_t crc) const;
  [[nodiscard]] std::uint64_t tail_offset() const { return end_; }
  [[nodiscard]] std::string tail(std::span<const std::uint32_t> crcs) const;  // one for each record
  [[nodiscard]] std::uint64_t size_bytes() const { return size_bytes_; }      // of the archive; after finish()

 private:
  struct Record {
    std::string name;
    std::uint64_t size_bytes = 0;
    std::uint64_t header = 0;
    std::uint64_t data = 0;
  };
  std::vector<Record> records_;
  std::uint64_t end_ = 0;  // of the last record
  std::uint64_t size_bytes_ = 0;
};

}  // namespace slackwater::formats
