#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "os/file_system.hpp"
#include "support/aligned_buffer.hpp"
#include "support/small_mount.hpp"
#include "support/temp_dir.hpp"

namespace slackwater {
namespace {

class PosixFileSystemTest : public testing::Test {
 protected:
  void put(const std::string& name, const std::string& text) { std::ofstream(dir_ / name) << text; }
  [[nodiscard]] std::span<const std::byte> bytes(std::string_view text) { return std::as_bytes(std::span(text)); }
  [[nodiscard]] ErrorKind open_error(const std::string& path, OpenMode mode = OpenMode::kRead) {
    const auto file = fs_->open(path, mode, false);
    return file ? ErrorKind::kInternal : file.error().kind;
  }

  test::TempDir dir_;
  std::unique_ptr<FileSystem> fs_ = make_posix_file_system();
};

TEST_F(PosixFileSystemTest, TellsHowManyNamesAFileHas) {
  put("f", "text");
  const auto file = fs_->open(dir_ / "f", OpenMode::kRead, false).value();
  EXPECT_EQ(file->status()->link_count, 1u);
  ASSERT_TRUE(fs_->link(dir_ / "f", dir_ / "g"));
  EXPECT_EQ(file->status()->link_count, 2u);
  EXPECT_EQ(fs_->status(dir_ / "g")->link_count, 2u);
}

TEST_F(PosixFileSystemTest, ReadsWhatItWrote) {
  {
    const auto file = fs_->open(dir_ / "f", OpenMode::kCreateExclusive, false).value();
    ASSERT_TRUE(file->write_at(bytes("world"), 6));
    ASSERT_TRUE(file->write_at(bytes("hello "), 0));
    ASSERT_TRUE(file->sync_all());
    ASSERT_TRUE(file->close());
  }
  const auto file = fs_->open(dir_ / "f", OpenMode::kRead, false).value();
  std::string text(20, '.');
  EXPECT_EQ(file->read_at(std::as_writable_bytes(std::span(text)), 0).value(), 11u);
  EXPECT_EQ(text.substr(0, 11), "hello world");
  EXPECT_EQ(file->read_at(std::as_writable_bytes(std::span(text)), 100).value(), 0u);
  EXPECT_EQ(file->status()->size_bytes, 11u);
  EXPECT_EQ(file->path(), dir_ / "f");
}

TEST_F(PosixFileSystemTest, CreatesExclusively) {
  put("taken", "mine");
  EXPECT_EQ(open_error(dir_ / "taken", OpenMode::kCreateExclusive), ErrorKind::kAlreadyExists);
  EXPECT_EQ(fs_->status(dir_ / "taken")->size_bytes, 4u);
  EXPECT_EQ(open_error(dir_ / "none/f", OpenMode::kCreateExclusive), ErrorKind::kNotFound);
}

TEST_F(PosixFileSystemTest, OpensOnlyRegularFilesForReadingAndNeverBlocks) {
  ASSERT_EQ(::mkfifo((dir_ / "fifo").c_str(), 0600), 0);
  put("file", "x");
  ASSERT_EQ(::symlink("file", (dir_ / "symlink").c_str()), 0);
  EXPECT_EQ(open_error(dir_ / "fifo"), ErrorKind::kCorrupt);
  EXPECT_EQ(open_error(dir_ / "symlink"), ErrorKind::kCorrupt);
  EXPECT_EQ(open_error(dir_.path()), ErrorKind::kCorrupt);
  EXPECT_EQ(open_error("/dev/null"), ErrorKind::kCorrupt);
  EXPECT_EQ(open_error(dir_ / "missing"), ErrorKind::kNotFound);
}

TEST_F(PosixFileSystemTest, DescriptorsDoNotReachExecutedProgramsAndBlockAsFilesDo) {
  put("f", "x");
  for (const bool direct : {false, true}) {
    const auto file = fs_->open(dir_ / "f", OpenMode::kRead, direct).value();
    EXPECT_EQ(::fcntl(file->descriptor(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    EXPECT_EQ(::fcntl(file->descriptor(), F_GETFL) & O_NONBLOCK, 0);
    EXPECT_EQ((::fcntl(file->descriptor(), F_GETFL) & O_DIRECT) != 0, file->direct());
  }
}

TEST_F(PosixFileSystemTest, DirectFilesReadUpToTheEnd) {
  put("f", std::string(5000, 'x'));
  const auto file = fs_->open(dir_ / "f", OpenMode::kRead, true).value();
  test::AlignedBuffer buffer(16384);
  EXPECT_EQ(file->read_at(buffer.bytes(), 0).value(), 5000u);
  EXPECT_EQ(file->read_at(buffer.bytes(), 4096).value(), 904u);
  EXPECT_EQ(file->read_at(buffer.bytes(), 8192).value(), 0u);
}

TEST_F(PosixFileSystemTest, DirectCanBeTurnedOffAfterAWriteWasRefused) {
  const auto file = fs_->open(dir_ / "f", OpenMode::kCreateExclusive, true).value();
  if (!file->direct()) GTEST_SKIP() << "no O_DIRECT here";
  test::AlignedBuffer buffer(8192);
  const Status refused = file->write_at(buffer.bytes().subspan(1, 100), 0);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().sys_errno, EINVAL);
  ASSERT_TRUE(file->set_direct(false));
  EXPECT_FALSE(file->direct());
  EXPECT_TRUE(file->write_at(buffer.bytes().subspan(1, 100), 0));
}

TEST_F(PosixFileSystemTest, WhereDirectIoIsRefusedTheFileIsBuffered) {
  const test::SmallMount ramfs("ramfs");
  if (!ramfs.mounted()) GTEST_SKIP() << "mounting is not permitted here";
  const auto file = fs_->open(ramfs / "f", OpenMode::kCreateExclusive, true).value();
  if (file->direct()) GTEST_SKIP() << "this kernel's ramfs takes O_DIRECT";
  EXPECT_TRUE(file->write_at(bytes("abc"), 1));
}

TEST_F(PosixFileSystemTest, AllocatesTheSizeAndTellsWhenThereIsNoRoom) {
  const auto file = fs_->open(dir_ / "f", OpenMode::kCreateExclusive, false).value();
  ASSERT_TRUE(file->allocate(0));
  ASSERT_TRUE(file->allocate(8192));
  EXPECT_EQ(file->status()->size_bytes, 8192u);
  ASSERT_TRUE(file->truncate(5000));
  EXPECT_EQ(file->status()->size_bytes, 5000u);

  const test::SmallMount disk("tmpfs", "size=1m");
  if (!disk.mounted()) GTEST_SKIP() << "mounting is not permitted here";
  const auto large = fs_->open(disk / "f", OpenMode::kCreateExclusive, false).value();
  const Status full = large->allocate(2u << 20);
  ASSERT_FALSE(full);
  EXPECT_EQ(full.error().kind, ErrorKind::kNoSpace);
}

TEST_F(PosixFileSystemTest, IfSpaceCannotBeReservedOnlyTheLengthIsSet) {
  const test::SmallMount ramfs("ramfs");
  if (!ramfs.mounted()) GTEST_SKIP() << "mounting is not permitted here";
  const auto file = fs_->open(ramfs / "f", OpenMode::kCreateExclusive, false).value();
  ASSERT_TRUE(file->allocate(8192));
  EXPECT_EQ(file->status()->size_bytes, 8192u);
}

TEST_F(PosixFileSystemTest, CloseIsIdempotentAndFinal) {
  const auto file = fs_->open(dir_ / "f", OpenMode::kCreateExclusive, false).value();
  EXPECT_TRUE(file->close());
  EXPECT_TRUE(file->close());
  EXPECT_EQ(file->sync_data().error().sys_errno, EBADF);
  EXPECT_EQ(file->sync_all().error().sys_errno, EBADF);
  EXPECT_EQ(file->write_at(bytes("x"), 0).error().sys_errno, EBADF);
}

TEST_F(PosixFileSystemTest, ListsSortedWithTheTypeOfTheEntryItself) {
  put("b", "");
  ASSERT_TRUE(fs_->make_directory(dir_ / "c"));
  ASSERT_EQ(::symlink("b", (dir_ / "a").c_str()), 0);
  const auto entries = fs_->list(dir_.path()).value();
  ASSERT_EQ(entries.size(), 3u);
  EXPECT_EQ(entries[0].name, "a");
  EXPECT_EQ(entries[0].type, FileType::kOther);
  EXPECT_EQ(entries[1].name, "b");
  EXPECT_EQ(entries[1].type, FileType::kRegular);
  EXPECT_EQ(entries[2].name, "c");
  EXPECT_EQ(entries[2].type, FileType::kDirectory);
  EXPECT_EQ(fs_->list(dir_ / "none").error().kind, ErrorKind::kNotFound);
}

TEST_F(PosixFileSystemTest, StatusDoesNotFollowLinks) {
  put("f", "abc");
  ASSERT_EQ(::symlink("f", (dir_ / "link").c_str()), 0);
  EXPECT_EQ(fs_->status(dir_ / "f")->type, FileType::kRegular);
  EXPECT_EQ(fs_->status(dir_ / "link")->type, FileType::kOther);
  EXPECT_EQ(fs_->status(dir_.path())->type, FileType::kDirectory);
  EXPECT_EQ(fs_->status(dir_ / "none").error().kind, ErrorKind::kNotFound);
}

TEST_F(PosixFileSystemTest, DirectoriesAreMadeSyncedAndRemoved) {
  ASSERT_TRUE(fs_->make_directory(dir_ / "d"));
  EXPECT_EQ(fs_->make_directory(dir_ / "d").error().kind, ErrorKind::kAlreadyExists);
  EXPECT_TRUE(fs_->sync_directory(dir_ / "d"));
  put("d/f", "x");
  EXPECT_EQ(fs_->remove_directory(dir_ / "d").error().sys_errno, ENOTEMPTY);
  ASSERT_TRUE(fs_->unlink(dir_ / "d/f"));
  EXPECT_TRUE(fs_->remove_directory(dir_ / "d"));
  EXPECT_EQ(fs_->sync_directory(dir_ / "d").error().kind, ErrorKind::kNotFound);
  EXPECT_EQ(fs_->unlink(dir_ / "d/f").error().kind, ErrorKind::kNotFound);
}

TEST_F(PosixFileSystemTest, LinkTakesANameOnlyOnce) {
  put("a", "1");
  put("b", "22");
  ASSERT_TRUE(fs_->link(dir_ / "a", dir_ / "name"));
  const Status second = fs_->link(dir_ / "b", dir_ / "name");
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().kind, ErrorKind::kAlreadyExists);
  EXPECT_EQ(second.error().path, dir_ / "name");
  EXPECT_EQ(fs_->status(dir_ / "name")->size_bytes, 1u);
}

TEST_F(PosixFileSystemTest, KnowsTheFreeSpace) {
  const test::SmallMount disk("tmpfs", "size=1m");
  if (disk.mounted()) {
    EXPECT_EQ(fs_->free_bytes(disk.path()).value(), 1u << 20);
  }
  EXPECT_GT(fs_->free_bytes(dir_.path()).value(), 0u);
  EXPECT_EQ(fs_->free_bytes(dir_ / "none").error().kind, ErrorKind::kNotFound);
}

TEST(SystemClock, WallTimeIsAfterThisWasWritten) {
  const SystemClock clock;
  EXPECT_GT(clock.wall_unix_ms(), 1'700'000'000'000);
  const TimePoint before = clock.now();
  EXPECT_GE(clock.now(), before);
}

}  // namespace
}  // namespace slackwater
