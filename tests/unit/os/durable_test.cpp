#include "os/durable.hpp"

#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "support/fault_file_system.hpp"
#include "support/nfs_file_system.hpp"
#include "support/small_mount.hpp"
#include "support/temp_dir.hpp"

namespace slackwater {
namespace {

using test::FsCall;

class DurableTest : public testing::Test {
 protected:
  [[nodiscard]] bool exists(const std::string& name) { return posix_->status(dir_ / name).has_value(); }
  [[nodiscard]] std::string text(const std::string& name) {
    return read_whole(*posix_, dir_ / name, 1000).value_or("(error)");
  }
  [[nodiscard]] std::size_t entries() { return posix_->list(dir_.path())->size(); }

  test::TempDir dir_;
  std::unique_ptr<FileSystem> posix_ = make_posix_file_system();
  test::FaultFileSystem fs_{*posix_};
};

TEST_F(DurableTest, AFileGetsRoomForDirectWritesAndThenItsExactSize) {
  auto file = DurableFile::create(fs_, dir_ / "f", 5000, false).value();
  EXPECT_EQ(file.file().status()->size_bytes, 8192u);
  ASSERT_TRUE(file.file().write_at(std::as_bytes(std::span(std::string_view("abc"))), 0));
  ASSERT_TRUE(file.finish());
  EXPECT_EQ(posix_->status(dir_ / "f")->size_bytes, 5000u);
}

TEST_F(DurableTest, TheOrderOfStepsIsKept) {
  auto file = DurableFile::create(fs_, dir_ / "f", 5000, false).value();
  ASSERT_TRUE(file.finish());
  EXPECT_EQ(fs_.calls(),
            (std::vector{FsCall::kOpen, FsCall::kAllocate, FsCall::kTruncate, FsCall::kSyncData, FsCall::kClose}));
}

TEST_F(DurableTest, PublishingKeepsItsOrderToo) {
  ASSERT_TRUE(publish_exclusively(fs_, dir_.path(), "m", "x", "u"));
  EXPECT_EQ(fs_.calls(), (std::vector{FsCall::kOpen, FsCall::kWriteAt, FsCall::kSyncAll, FsCall::kClose, FsCall::kLink,
                                      FsCall::kUnlink, FsCall::kSyncDirectory}));
}

// On NFS, with a host per test. What the host cached before the call must not decide.
TEST_F(DurableTest, ALinkWhoseReplyWasLostIsOursAndOneOfAnotherIsNot) {
  for (const int answer : {EEXIST, EIO, ETIMEDOUT}) {
    const SystemClock clock;
    test::NfsFileSystem host(*posix_, clock);
    const std::string name = "m" + std::to_string(answer);
    host.lose_link_reply(name, answer);
    EXPECT_TRUE(publish_exclusively(host, dir_.path(), name, "ours", "u"));
    EXPECT_EQ(text(name), "ours");
    EXPECT_EQ(publish_exclusively(host, dir_.path(), name, "theirs", "u").error().kind, ErrorKind::kAlreadyExists);
    EXPECT_EQ(text(name), "ours");
  }
  EXPECT_EQ(entries(), 3u) << "private names stay behind";
}

TEST_F(DurableTest, ALinkThatWasNotMadeIsAnError) {
  fs_.fail(FsCall::kLink, ETIMEDOUT);
  EXPECT_EQ(publish_exclusively(fs_, dir_.path(), "m", "x", "u").error().kind, ErrorKind::kTimeout);
  fs_.fail(FsCall::kLink, EEXIST);
  fs_.fail(FsCall::kOpen, EIO, {.nth = 2});  // whether it is ours cannot be told: then what link() said stands
  EXPECT_EQ(publish_exclusively(fs_, dir_.path(), "m", "x", "u").error().kind, ErrorKind::kAlreadyExists);
  EXPECT_EQ(entries(), 0u);
}

TEST_F(DurableTest, ANameIsFoundInTheListingOfItsDirectoryOrNot) {
  ASSERT_TRUE(write_durably(fs_, dir_ / "b", "x"));
  EXPECT_TRUE(lists_name(fs_, dir_.path(), "b").value());
  for (const char* const other : {"a", "c", "bb", ""}) EXPECT_FALSE(lists_name(fs_, dir_.path(), other).value());
  EXPECT_EQ(lists_name(fs_, dir_ / "none", "b").error().kind, ErrorKind::kNotFound);
}

TEST_F(DurableTest, AFileThatFindsNoRoomLeavesNothingBehind) {
  fs_.fail(FsCall::kAllocate, ENOSPC);
  const auto file = DurableFile::create(fs_, dir_ / "f", 5000, false);
  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().kind, ErrorKind::kNoSpace);
  EXPECT_FALSE(exists("f"));
}

TEST_F(DurableTest, AFullDiskIsNoticedBeforeTheFirstByte) {
  const test::SmallMount disk("tmpfs", "size=1m");
  if (!disk.mounted()) GTEST_SKIP() << "mounting is not permitted here";
  const auto file = DurableFile::create(*posix_, disk / "f", 2u << 20, false);
  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().kind, ErrorKind::kNoSpace);
  EXPECT_EQ(posix_->free_bytes(disk.path()).value(), 1u << 20);
}

TEST_F(DurableTest, AFailedStepIsReportedAndNeverTriedAgain) {
  for (const FsCall step : {FsCall::kTruncate, FsCall::kSyncData, FsCall::kClose}) {
    const std::uint64_t before = fs_.count(step);
    auto file = DurableFile::create(fs_, dir_ / std::to_string(static_cast<int>(step)), 100, false).value();
    fs_.fail(step, EIO);
    const Status finished = file.finish();
    ASSERT_FALSE(finished);
    EXPECT_EQ(finished.error().sys_errno, EIO);
    EXPECT_EQ(fs_.count(step), before + 1);
  }
}

TEST_F(DurableTest, ASmallFileIsThereWhollyOrNotAtAll) {
  ASSERT_TRUE(write_durably(fs_, dir_ / "good", "text"));
  EXPECT_EQ(text("good"), "text");
  EXPECT_EQ(write_durably(fs_, dir_ / "good", "other").error().kind, ErrorKind::kAlreadyExists);
  EXPECT_EQ(text("good"), "text");
  for (const FsCall step : {FsCall::kWriteAt, FsCall::kSyncAll, FsCall::kClose}) {
    fs_.fail(step, EIO);
    EXPECT_EQ(write_durably(fs_, dir_ / "bad", "text").error().sys_errno, EIO);
    EXPECT_FALSE(exists("bad"));
  }
}

TEST_F(DurableTest, AnEmptyFileCanBeWritten) {
  ASSERT_TRUE(write_durably(fs_, dir_ / "empty", ""));
  EXPECT_EQ(text("empty"), "");
}

TEST_F(DurableTest, ANameIsPublishedOnce) {
  ASSERT_TRUE(publish_exclusively(fs_, dir_.path(), "manifest", "commit", "a1"));
  const Status second = publish_exclusively(fs_, dir_.path(), "manifest", "abort", "a2");
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().kind, ErrorKind::kAlreadyExists);
  EXPECT_EQ(text("manifest"), "commit");
  EXPECT_EQ(entries(), 1u);
}

TEST_F(DurableTest, AFailedPublicationLeavesNoName) {
  for (const FsCall step : {FsCall::kOpen, FsCall::kWriteAt, FsCall::kSyncAll, FsCall::kClose, FsCall::kLink}) {
    fs_.fail(step, EIO);
    const Status published = publish_exclusively(fs_, dir_.path(), "manifest", "commit", "a1");
    ASSERT_FALSE(published);
    EXPECT_EQ(published.error().kind, ErrorKind::kIo);
    EXPECT_EQ(entries(), 0u);
  }
  EXPECT_EQ(fs_.count(FsCall::kSyncDirectory), 0u);
}

TEST_F(DurableTest, AFailedSyncOfTheDirectoryIsInDoubt) {
  fs_.fail(FsCall::kSyncDirectory, EIO);
  const Status published = publish_exclusively(fs_, dir_.path(), "manifest", "commit", "a1");
  ASSERT_FALSE(published);
  EXPECT_EQ(published.error().kind, ErrorKind::kInDoubt);
  EXPECT_FALSE(published.error().retryable);
  EXPECT_EQ(fs_.count(FsCall::kSyncDirectory), 1u);
}

TEST_F(DurableTest, ATakenPrivateNameIsNotTakenForTheFinalOne) {
  std::ofstream(dir_ / ".manifest.a1.tmp") << "debris";
  const Status published = publish_exclusively(fs_, dir_.path(), "manifest", "commit", "a1");
  ASSERT_FALSE(published);
  EXPECT_EQ(published.error().kind, ErrorKind::kIo);
}

TEST_F(DurableTest, APrivateNameThatCannotBeRemovedDoesNotUndoThePublication) {
  fs_.fail(FsCall::kUnlink, EIO);
  EXPECT_TRUE(publish_exclusively(fs_, dir_.path(), "manifest", "commit", "a1"));
  EXPECT_EQ(text("manifest"), "commit");
}

TEST_F(DurableTest, ReadWholeRefusesAFileThatIsTooLargeBeforeReadingIt) {
  std::ofstream(dir_ / "f") << std::string(100, 'x');
  EXPECT_EQ(read_whole(fs_, dir_ / "f", 100)->size(), 100u);
  const auto refused = read_whole(fs_, dir_ / "f", 99);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::kCorrupt);
  EXPECT_EQ(fs_.count(FsCall::kReadAt), 1u);
  ASSERT_EQ(::truncate((dir_ / "f").c_str(), off_t{1} << 40), 0);
  EXPECT_EQ(read_whole(fs_, dir_ / "f", 1 << 20).error().kind, ErrorKind::kCorrupt);
  EXPECT_EQ(read_whole(fs_, dir_ / "none", 99).error().kind, ErrorKind::kNotFound);
}

TEST_F(DurableTest, EnsureDirectoryTellsWhetherItMadeIt) {
  EXPECT_TRUE(ensure_directory(fs_, dir_ / "d").value());
  EXPECT_FALSE(ensure_directory(fs_, dir_ / "d").value());
  ASSERT_EQ(::symlink("d", (dir_ / "link").c_str()), 0);
  EXPECT_FALSE(ensure_directory(fs_, dir_ / "link").value());
  EXPECT_EQ(ensure_directory(fs_, dir_ / "a/b").error().kind, ErrorKind::kNotFound);
  std::ofstream(dir_ / "file") << "x";
  const auto blocked = ensure_directory(fs_, dir_ / "file");
  ASSERT_FALSE(blocked);
  EXPECT_EQ(blocked.error().kind, ErrorKind::kAlreadyExists);
  EXPECT_NE(blocked.error().message.find("in the way"), std::string::npos);
}

}  // namespace
}  // namespace slackwater
