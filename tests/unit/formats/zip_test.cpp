#include <numeric>

#include <gtest/gtest.h>

#include "formats/crc32.hpp"
#include "formats/zip_layout.hpp"
#include "formats/zip_reader.hpp"

namespace slackwater::formats {
namespace {

// Writes records of these sizes, all zeros, as sparse memory would hold them: only headers and the tail are made.
std::string archive_of(const std::vector<std::pair<std::string, std::string>>& records) {
  ZipLayout layout;
  for (const auto& [name, bytes] : records) layout.add(name, bytes.size());
  layout.finish();
  std::string archive(layout.size_bytes(), '\0');
  std::vector<std::uint32_t> crcs;
  for (std::size_t i = 0; i < records.size(); ++i) {
    crcs.push_back(crc32(std::as_bytes(std::span(records[i].second))));
    const std::string header = layout.header(i, crcs[i]);
    EXPECT_EQ(layout.header_offset(i) + header.size(), layout.data_offset(i));
    EXPECT_EQ(layout.data_offset(i) % kRecordAlignment, 0u);
    archive.replace(layout.header_offset(i), header.size(), header);
    archive.replace(layout.data_offset(i), records[i].second.size(), records[i].second);
  }
  const std::string tail = layout.tail(crcs);
  archive.replace(layout.tail_offset(), tail.size(), tail);
  return archive;
}

TEST(Crc32, IsTheOneOfZipAndContinues) {
  const std::string text = "123456789";
  EXPECT_EQ(crc32(std::as_bytes(std::span(text))), 0xcbf43926u);
  std::string bytes(1000, '\0');
  std::iota(bytes.begin(), bytes.end(), '\0');
  const auto all = std::as_bytes(std::span(bytes));
  for (const std::size_t cut : {0u, 1u, 7u, 8u, 500u, 1000u})
    EXPECT_EQ(crc32(all.subspan(cut), crc32(all.first(cut))), crc32(all));
}

TEST(Zip, RecordsAreReadAsTheyWereWritten) {
  const std::vector<std::pair<std::string, std::string>> records{
      {"a/data.pkl", "pickle"}, {"a/empty", ""}, {"a/data/0", std::string(1000, 'x')}};
  const std::string archive = archive_of(records);
  const auto reader = ZipReader::open(std::as_bytes(std::span(archive)), "file");
  ASSERT_TRUE(reader) << reader.error().to_string();
  ASSERT_EQ(reader->records().size(), records.size());
  for (const auto& [name, bytes] : records) {
    const ZipRecord* record = reader->find(name);
    ASSERT_NE(record, nullptr) << name;
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(record->bytes.data()), record->bytes.size()), bytes);
    EXPECT_EQ(record->crc, crc32(record->bytes));
  }
}

TEST(Zip, CutAnywhereItIsRefusedAndNeverReadBeyondItsEnd) {
  const std::string archive = archive_of({{"a/data.pkl", "pickle"}, {"a/data/0", std::string(100, 'x')}});
  for (std::size_t size = 0; size < archive.size(); ++size) {
    const std::vector<char> exact(archive.begin(), archive.begin() + static_cast<std::ptrdiff_t>(size));
    const auto reader = ZipReader::open(std::as_bytes(std::span(exact)), "file");
    ASSERT_FALSE(reader) << size;
    EXPECT_EQ(reader.error().kind, ErrorKind::kCorrupt);
  }
}

TEST(Zip, ALayoutBeyondFourGigabytesHas64BitSizes) {
  constexpr std::uint64_t kLarge = 5ull << 30;
  ZipLayout layout;
  layout.add("a/data/0", kLarge);
  layout.add("a/data/1", 10);
  layout.finish();
  EXPECT_GT(layout.header_offset(1), kLarge);
  EXPECT_EQ(layout.header_offset(0) + layout.header(0, 0).size(), layout.data_offset(0));
  // Only the list at the end: the reader then looks for headers that are not there, at the right places.
  const std::string tail = layout.tail(std::vector<std::uint32_t>{1, 2});
  EXPECT_EQ(layout.tail_offset() + tail.size(), layout.size_bytes());
  EXPECT_NE(tail.find("PK\x06\x06"), std::string::npos) << "the zip64 end";
  EXPECT_NE(tail.find("PK\x06\x07"), std::string::npos) << "its locator";
}

TEST(Zip, ManyRecordsNeedTheLargeEnd) {
  std::vector<std::pair<std::string, std::string>> records;
  for (int i = 0; i < 70'000; ++i) records.emplace_back("a/data/" + std::to_string(i), "");
  const std::string archive = archive_of(records);
  const auto reader = ZipReader::open(std::as_bytes(std::span(archive)), "file");
  ASSERT_TRUE(reader) << reader.error().to_string();
  EXPECT_EQ(reader->records().size(), records.size());
}

}  // namespace
}  // namespace slackwater::formats
