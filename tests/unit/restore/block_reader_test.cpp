#include "restore/block_reader.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/digest.hpp"
#include "restore/extent_map.hpp"
#include "support/fault_file_system.hpp"
#include "support/temp_dir.hpp"

namespace slackwater {
namespace {

using test::FaultFileSystem;
using test::FsCall;
using testing::HasSubstr;

constexpr std::uint64_t kMiB = 1u << 20;

class BlockReaderTest : public testing::Test {
 protected:
  // A file of pseudo-random bytes, known to the reader under the next number.
  void add_file(std::uint64_t size_bytes) {
    std::string bytes(size_bytes, '\0');
    std::uint64_t word = size_bytes + contents_.size();
    for (std::uint64_t at = 0; at < size_bytes; at += sizeof word) {
      word = word * 6364136223846793005u + 1442695040888963407u;
      std::memcpy(bytes.data() + at, &word, std::min<std::uint64_t>(sizeof word, size_bytes - at));
    }
    std::vector<std::uint64_t> digests;
    for (std::uint64_t at = 0; at < size_bytes; at += kBlockBytes)
      digests.push_back(
          digest64(std::as_bytes(std::span(bytes)).subspan(at, std::min<std::uint64_t>(kBlockBytes, size_bytes - at))));
    paths_.push_back(directory_ / std::to_string(contents_.size()));
    contents_.push_back(std::move(bytes));
    digests_.push_back(std::move(digests));
    store(contents_.size() - 1, contents_.back());
  }
  void store(std::size_t file, std::string_view bytes) const {
    std::ofstream(paths_[file], std::ios::binary | std::ios::trunc)
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }
  [[nodiscard]] std::vector<ReadFile> files() const {
    std::vector<ReadFile> result;
    for (std::size_t i = 0; i < contents_.size(); ++i) result.push_back({paths_[i], contents_[i].size(), digests_[i]});
    return result;
  }

  // Reads all files whole. Returns the status; what was verified is compared, what was bad is kept.
  Status run(std::uint32_t slabs = 4, BlockReader::Options options = {}, bool go_on = true) {
    auto pool = Pool::create(kMiB * 2, slabs);
    EXPECT_TRUE(pool);
    (*pool)->wait_touched();  // or fewer reads are in flight at first than the test wants
    BlockReader reader(fs_, **pool, options, Log([this](LogLevel level, std::string_view message) {
                         if (level != LogLevel::kInfo) warnings_.emplace_back(message);
                       }));
    std::vector<FileExtent> extents;
    for (std::uint32_t i = 0; i < contents_.size(); ++i) extents.push_back({i, 0, 0, contents_[i].size()});
    const std::vector<ReadFile> read_files = files();
    const std::vector<ReadUnit> units = ExtentMap(extents).plan_units(read_files, reader.unit_bytes());
    verified_bytes_ = 0;
    last_progress_ = 0;
    const Status status = reader.run(
        read_files, units,
        [&](const ReadUnit& unit, std::span<const std::byte> bytes) -> Status {
          const std::string_view expected = std::string_view(contents_[unit.file]).substr(unit.offset, unit.size_bytes);
          const std::string_view found(reinterpret_cast<const char*>(bytes.data()), bytes.size());
          if (expected != found) wrong_bytes_ = true;
          verified_bytes_ += unit.size_bytes;
          return place_result_;
        },
        [&](const BadBlock& bad) {
          bad_.push_back(bad);
          return go_on;
        },
        [&](std::uint64_t done) {
          EXPECT_GE(done, last_progress_);
          last_progress_ = done;
        });
    (*pool)->wait_touched();
    EXPECT_EQ((*pool)->free_count(), slabs) << "every slab comes back";
    return status;
  }
  [[nodiscard]] std::uint64_t total_bytes() const {
    std::uint64_t total = 0;
    for (const std::string& bytes : contents_) total += bytes.size();
    return total;
  }

  test::TempDir directory_;
  std::unique_ptr<FileSystem> real_ = make_posix_file_system();
  FaultFileSystem fs_{*real_};
  std::vector<std::string> paths_;
  std::vector<std::string> contents_;
  std::vector<std::vector<std::uint64_t>> digests_;
  std::vector<BadBlock> bad_;
  std::vector<std::string> warnings_;
  std::atomic<std::uint64_t> verified_bytes_{0};
  std::atomic<bool> wrong_bytes_{false};
  std::uint64_t last_progress_ = 0;
  Status place_result_;
};

TEST_F(BlockReaderTest, HandsOverEveryByteOfSeveralFilesOnce) {
  add_file(9 * kMiB + 17);
  add_file(1);
  add_file(4096);
  add_file(3 * kMiB);
  ASSERT_TRUE(run());
  EXPECT_EQ(verified_bytes_, total_bytes());
  EXPECT_EQ(last_progress_, total_bytes());
  EXPECT_FALSE(wrong_bytes_);
  EXPECT_TRUE(bad_.empty());
}

TEST_F(BlockReaderTest, GetsThroughWithAPoolOfTwoSlabsAndMoreThreadsThanSlabs) {
  add_file(12 * kMiB + 3);
  ASSERT_TRUE(run(2, {.place_threads = 4}));
  EXPECT_EQ(verified_bytes_, total_bytes());
  EXPECT_FALSE(wrong_bytes_);
}

TEST_F(BlockReaderTest, ReadsWithWorkerThreadsAndWithoutDirectIo) {
  add_file(9 * kMiB + 17);
  ASSERT_TRUE(run(2, {.force_threads = true}));
  ASSERT_TRUE(run(2, {.direct = false}));
  EXPECT_EQ(verified_bytes_, total_bytes());
  EXPECT_FALSE(wrong_bytes_);
}

TEST_F(BlockReaderTest, NamesEachDamagedBlockAndVerifiesTheRest) {
  add_file(8 * kMiB);
  std::string damaged = contents_[0];
  damaged[3 * kMiB] = static_cast<char>(damaged[3 * kMiB] ^ 1);
  damaged[8 * kMiB - 1] = static_cast<char>(damaged[8 * kMiB - 1] ^ 0x80);
  store(0, damaged);
  ASSERT_TRUE(run());
  std::set<std::uint64_t> offsets;
  for (const BadBlock& bad : bad_) {
    offsets.insert(bad.offset);
    EXPECT_EQ(bad.size_bytes, kMiB);
    EXPECT_EQ(bad.error.kind, ErrorKind::kCorrupt);
    EXPECT_EQ(bad.error.path, paths_[0]);
  }
  EXPECT_EQ(offsets, (std::set<std::uint64_t>{3 * kMiB, 7 * kMiB}));
  EXPECT_FALSE(wrong_bytes_);
}

TEST_F(BlockReaderTest, EndsWithTheErrorOfTheFirstBadBlockWhenToldTo) {
  add_file(16 * kMiB);
  std::string damaged = contents_[0];
  for (std::uint64_t at = 0; at < damaged.size(); at += kMiB) damaged[at] = static_cast<char>(damaged[at] ^ 1);
  store(0, damaged);
  const Status status = run(2, {}, false);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().kind, ErrorKind::kCorrupt);
  EXPECT_EQ(verified_bytes_, 0u);
}

TEST_F(BlockReaderTest, ReportsTheMissingEndOfATruncatedFile) {
  add_file(4 * kMiB);
  store(0, std::string_view(contents_[0]).substr(0, 2 * kMiB + 100));
  ASSERT_TRUE(run());
  ASSERT_EQ(bad_.size(), 2u);
  EXPECT_THAT(bad_[0].error.message, HasSubstr("ends before"));
  EXPECT_EQ(verified_bytes_, 2 * kMiB);
}

TEST_F(BlockReaderTest, ReportsAFileThatCannotBeOpenedOnceAndReadsTheOthers) {
  add_file(5 * kMiB);
  add_file(5 * kMiB);
  fs_.fail(FsCall::kOpen, EACCES, {.times = test::kAlways, .path = paths_[0]});
  ASSERT_TRUE(run());
  ASSERT_EQ(bad_.size(), 1u);
  EXPECT_EQ(bad_[0].file, 0u);
  EXPECT_EQ(bad_[0].size_bytes, 5 * kMiB);
  EXPECT_EQ(bad_[0].error.kind, ErrorKind::kPermission);
  EXPECT_EQ(verified_bytes_, 5 * kMiB);
}

TEST_F(BlockReaderTest, GoesOnBufferedWhenDirectReadsAreRefusedAndSaysSoOnce) {
  add_file(10 * kMiB + 5);
  add_file(2 * kMiB);
  const auto probe = real_->open(paths_[0], OpenMode::kRead, true);
  ASSERT_TRUE(probe);
  if (!(*probe)->direct()) GTEST_SKIP() << "this file system has no direct reads to refuse";
  fs_.fail(FsCall::kQueueRead, EINVAL, {.times = 2});
  ASSERT_TRUE(run());
  EXPECT_EQ(verified_bytes_, total_bytes());
  EXPECT_FALSE(wrong_bytes_);
  EXPECT_TRUE(bad_.empty());
  EXPECT_EQ(fs_.set_direct_in_flight(), 0u) << "the descriptor changed under reads";
  ASSERT_EQ(warnings_.size(), 1u);
  EXPECT_THAT(warnings_[0], HasSubstr("direct"));
}

TEST_F(BlockReaderTest, ReadsEachBlockAloneAfterAFailedRead) {
  add_file(8 * kMiB);
  fs_.fail(FsCall::kQueueRead, EIO, {.times = 1});
  fs_.fail(FsCall::kReadAt, EIO, {.nth = 2, .times = test::kAlways});  // the first block is read, the second never
  ASSERT_TRUE(run());
  ASSERT_EQ(bad_.size(), 1u);
  EXPECT_EQ(bad_[0].error.sys_errno, EIO);
  EXPECT_EQ(bad_[0].size_bytes, kMiB);
  EXPECT_EQ(verified_bytes_, 6 * kMiB);
}

TEST_F(BlockReaderTest, WorksWithoutRegisteredBuffers) {
  add_file(12 * kMiB);
  fs_.fail(FsCall::kRegisterBuffer, ENOMEM, {.times = test::kAlways});
  ASSERT_TRUE(run(2));
  EXPECT_EQ(verified_bytes_, total_bytes());
  EXPECT_FALSE(wrong_bytes_);
  EXPECT_GT(fs_.count(FsCall::kRegisterBuffer), 0u);
}

TEST_F(BlockReaderTest, StopsWithTheErrorOfThePlacer) {
  add_file(12 * kMiB);
  place_result_ = fail(ErrorKind::kInternal, "no place");
  const Status status = run(2);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().message, "no place");
}

TEST_F(BlockReaderTest, PassesOnThatThereIsNoQueue) {
  add_file(kMiB);
  fs_.fail(FsCall::kMakeQueue, EMFILE);
  const Status status = run(2);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().sys_errno, EMFILE);
}

}  // namespace
}  // namespace slackwater
