#include "tiers/file_copier.hpp"

#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>

#include <gtest/gtest.h>

#include "base/digest.hpp"
#include "support/bytes.hpp"
#include "support/fault_file_system.hpp"
#include "support/file_bytes.hpp"
#include "support/temp_dir.hpp"

namespace slackwater::test {
namespace {

class FileCopierTest : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kMiB = 1u << 20;

  FileCopierTest() : bytes_(19 * kMiB + 77) {
    fill_pattern(bytes_, 3);
    record_ = {.name = "a", .size_bytes = bytes_.size(), .tensor_count = 1, .block_digests = {}};
    for (std::uint64_t at = 0; at < bytes_.size(); at += kBlockBytes)
      record_.block_digests.push_back(
          digest64(std::span(bytes_).subspan(at, std::min<std::uint64_t>(kBlockBytes, bytes_.size() - at))));
    write(source_);
  }
  void write(const std::string& path) const {
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes_.data()), static_cast<std::streamsize>(bytes_.size()));
  }
  Status copy(const CopyOptions& options = {}) { return copy_file({fs_, source_}, {fs_, target_}, record_, options); }

  TempDir temp_;
  const std::string source_ = temp_ / "source";
  const std::string target_ = temp_ / "target";
  std::unique_ptr<FileSystem> real_ = make_posix_file_system();
  FaultFileSystem fs_{*real_};
  Bytes bytes_;
  FileRecord record_;
};

TEST_F(FileCopierTest, CopiesEveryByteAndCountsThem) {
  std::atomic<std::uint64_t> sent{0};
  ASSERT_TRUE(copy({.threads = 3, .on_sent = [&](std::uint64_t size) { sent += size; }}));
  EXPECT_EQ(read_file(target_), read_file(source_));
  EXPECT_EQ(sent, bytes_.size());
}

TEST_F(FileCopierTest, DamageIsNotCopied) {
  bytes_[9 * kMiB] ^= std::byte{1};
  write(source_);
  const Status copied = copy();
  ASSERT_FALSE(copied);
  EXPECT_EQ(copied.error().kind, ErrorKind::kCorrupt);
  EXPECT_EQ(copied.error().path, source_);
  const auto there = read_file(target_);
  EXPECT_NE(there[9 * kMiB], bytes_[9 * kMiB]) << "a damaged byte arrived";
}

TEST_F(FileCopierTest, AShortSourceIsDamage) {
  std::filesystem::resize_file(source_, bytes_.size() - 1);
  const Status copied = copy();
  ASSERT_FALSE(copied);
  EXPECT_EQ(copied.error().kind, ErrorKind::kCorrupt);
  EXPECT_FALSE(std::filesystem::exists(target_));
}

TEST_F(FileCopierTest, AnInterruptedCopyIsContinued) {
  fs_.fail(FsCall::kWriteAt, EIO, {.nth = 2, .times = kAlways, .path = "target"});
  EXPECT_FALSE(copy({.threads = 1}));
  fs_.clear_faults();
  const std::uint64_t before = fs_.count(FsCall::kWriteAt);
  ASSERT_TRUE(copy({.threads = 1}));
  // The first part is there: 8 of the 20 started MiB. What differs is written by the MiB.
  EXPECT_LE(fs_.count(FsCall::kWriteAt) - before, 13u);
  EXPECT_EQ(read_file(target_), read_file(source_));
}

TEST_F(FileCopierTest, AReadThatFailsOnceIsTriedAgain) {
  fs_.fail(FsCall::kReadAt, EIO, {.path = "source"});
  EXPECT_TRUE(copy());
  EXPECT_EQ(read_file(target_), read_file(source_));
}

TEST_F(FileCopierTest, AStopEndsTheCopySoon) {
  std::stop_source stop;
  stop.request_stop();
  const Status copied = copy({.stop = stop.get_token()});
  ASSERT_FALSE(copied);
  EXPECT_EQ(copied.error().kind, ErrorKind::kClosed);
}

TEST_F(FileCopierTest, ASmallFileThatACrashCutShortIsReplaced) {
  ASSERT_TRUE(place_file(fs_, temp_.path(), "small", "text"));
  ASSERT_TRUE(place_file(fs_, temp_.path(), "small", "text")) << "twice is once";
  std::ofstream(temp_ / "small") << "te";
  ASSERT_TRUE(place_file(fs_, temp_.path(), "small", "text"));
  EXPECT_EQ(read_file_text(temp_ / "small"), "text");
}

}  // namespace
}  // namespace slackwater::test
