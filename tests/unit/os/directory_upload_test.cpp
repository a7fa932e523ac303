#include "os/directory_upload.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <vector>

#include <gtest/gtest.h>

#include "support/aligned_buffer.hpp"
#include "support/fault_file_system.hpp"
#include "support/file_bytes.hpp"
#include "support/temp_dir.hpp"

namespace slackwater::test {
namespace {

class DirectoryUploadTest : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kPart = DirectoryUpload::kPartBytes;

  DirectoryUploadTest() { memory_.fill(7); }

  std::unique_ptr<FileUpload> begin() {
    auto upload = fs_.begin_upload(path_, bytes_.size());
    if (!upload) throw std::runtime_error(upload.error().to_string());
    return std::move(*upload);
  }
  Status send(FileUpload& upload, std::uint32_t part) {
    const std::uint64_t start = part * kPart;
    const auto piece = bytes_.subspan(start, std::min<std::uint64_t>(kPart, bytes_.size() - start));
    MemorySource source(std::span(&piece, 1));
    return upload.send(part, source);
  }
  static void write_zeros(const std::string& path, std::size_t size_bytes) {
    std::ofstream(path, std::ios::binary) << std::string(size_bytes, '\0');
  }
  [[nodiscard]] bool arrived() const {
    const std::vector<std::byte> there = read_file(path_);
    return there.size() == bytes_.size() && std::equal(there.begin(), there.end(), bytes_.begin());
  }

  TempDir temp_;
  const std::string path_ = temp_ / "file";
  std::unique_ptr<FileSystem> real_ = make_posix_file_system();
  FaultFileSystem fs_{*real_};
  AlignedBuffer memory_{3 * kPart};
  const std::span<const std::byte> bytes_ = memory_.bytes().first(2 * kPart + 5000);
};

TEST_F(DirectoryUploadTest, PartsArriveInAnyOrder) {
  auto upload = begin();
  for (const std::uint32_t part : {2, 0, 1}) ASSERT_TRUE(send(*upload, part));
  ASSERT_TRUE(upload->finish());
  EXPECT_TRUE(arrived());
}

TEST_F(DirectoryUploadTest, ContinuesWhereTheLastTryStopped) {
  ASSERT_TRUE(send(*begin(), 0));
  auto upload = begin();
  const std::uint64_t before = fs_.count(FsCall::kWriteAt);
  ASSERT_TRUE(send(*upload, 0));
  EXPECT_EQ(fs_.count(FsCall::kWriteAt), before) << "what is there already was written again";
  ASSERT_TRUE(send(*upload, 1));
  ASSERT_TRUE(send(*upload, 2));
  ASSERT_TRUE(upload->finish());
  EXPECT_TRUE(arrived());
}

TEST_F(DirectoryUploadTest, WhatAPowerCutLeftIsComparedAndReplaced) {
  write_zeros(path_, bytes_.size() + 100);  // and too long
  auto upload = begin();
  for (const std::uint32_t part : {0, 1, 2}) ASSERT_TRUE(send(*upload, part));
  ASSERT_TRUE(upload->finish());
  EXPECT_TRUE(arrived());
}

TEST_F(DirectoryUploadTest, AFileWhoseSyncFailedIsWrittenAnew) {
  auto upload = begin();
  for (const std::uint32_t part : {0, 1, 2}) ASSERT_TRUE(send(*upload, part));
  fs_.fail(FsCall::kSyncData, EIO);
  EXPECT_FALSE(upload->finish());
  EXPECT_FALSE(std::filesystem::exists(path_)) << "a second sync of this file would prove nothing";
}

TEST_F(DirectoryUploadTest, BytesAreSyncedBeforeTheName) {
  auto upload = begin();
  for (const std::uint32_t part : {0, 1, 2}) ASSERT_TRUE(send(*upload, part));
  ASSERT_TRUE(upload->finish());
  const std::vector<FsCall> calls = fs_.calls();
  const auto bytes = std::ranges::find(calls, FsCall::kSyncData);
  ASSERT_NE(bytes, calls.end());
  EXPECT_NE(std::find(bytes, calls.end(), FsCall::kSyncDirectory), calls.end());
}

TEST_F(DirectoryUploadTest, AFileHasItsLengthOnlyOnceAllOfItIsDurable) {
  for (int tries = 0; tries < 2; ++tries) {
    auto upload = begin();
    for (const std::uint32_t part : {2, 1, 0}) {
      ASSERT_TRUE(send(*upload, part));
      EXPECT_NE(std::filesystem::file_size(path_), bytes_.size()) << "somebody may take it for complete";
    }
  }
  auto upload = begin();
  for (const std::uint32_t part : {0, 1, 2}) ASSERT_TRUE(send(*upload, part));
  const std::size_t before = fs_.calls().size();
  ASSERT_TRUE(upload->finish());
  EXPECT_TRUE(arrived());
  std::vector<FsCall> calls = fs_.calls();
  calls.erase(calls.begin(), calls.begin() + static_cast<std::ptrdiff_t>(before));
  std::erase_if(calls, [](FsCall call) { return call != FsCall::kSyncData && call != FsCall::kTruncate; });
  EXPECT_EQ(calls, (std::vector{FsCall::kSyncData, FsCall::kTruncate, FsCall::kSyncData}));
}

TEST_F(DirectoryUploadTest, AFileThatIsCompleteKeepsItsLengthWhileItIsComparedAgain) {
  auto upload = begin();
  for (const std::uint32_t part : {0, 1, 2}) ASSERT_TRUE(send(*upload, part));
  ASSERT_TRUE(upload->finish());
  auto again = begin();
  EXPECT_TRUE(arrived()) << "a reader may have it open";
  ASSERT_TRUE(send(*again, 0));
  EXPECT_TRUE(arrived());
}

TEST_F(DirectoryUploadTest, TwoThatSendTheSameFileDoNotSpoilIt) {
  auto first = begin();
  auto second = begin();
  for (const std::uint32_t part : {0, 1, 2}) ASSERT_TRUE(send(*first, part));
  ASSERT_TRUE(send(*second, 1));
  ASSERT_TRUE(first->finish());
  EXPECT_TRUE(arrived());
  for (const std::uint32_t part : {0, 2}) ASSERT_TRUE(send(*second, part));
  EXPECT_TRUE(arrived());
  ASSERT_TRUE(second->finish());
  EXPECT_TRUE(arrived());
}

TEST_F(DirectoryUploadTest, AbandonLeavesNothing) {
  auto upload = begin();
  ASSERT_TRUE(send(*upload, 1));
  ASSERT_TRUE(upload->abandon());
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(DirectoryUploadTest, ALinkInTheWayIsNotFollowed) {
  write_zeros(temp_ / "other", 10);
  std::filesystem::create_symlink(temp_ / "other", path_);
  const auto upload = fs_.begin_upload(path_, bytes_.size());
  ASSERT_FALSE(upload);
  EXPECT_EQ(upload.error().kind, ErrorKind::kCorrupt);
  EXPECT_EQ(std::filesystem::file_size(temp_ / "other"), 10u);
}

}  // namespace
}  // namespace slackwater::test
