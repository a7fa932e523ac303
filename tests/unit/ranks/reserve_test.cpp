#include "ranks/reserve.hpp"

#include <sys/stat.h>

#include <cerrno>
#include <chrono>
#include <filesystem>

#include <gtest/gtest.h>

#include "support/fault_file_system.hpp"
#include "support/manual_clock.hpp"
#include "support/nfs_file_system.hpp"
#include "support/small_mount.hpp"

namespace slackwater::test {
namespace {

class ReserveTest : public ::testing::Test {
 protected:
  [[nodiscard]] bool there() const { return std::filesystem::exists(path_); }

  TempDir temp_{TempDir::in_memory()};
  const std::string path_ = temp_ / "reserve";
  ManualClock clock_;
  std::unique_ptr<FileSystem> real_ = make_posix_file_system();
  FaultFileSystem fs_{*real_};
  Reserve reserve_{fs_, clock_, temp_.path()};
};

TEST_F(ReserveTest, TakesRealBlocksAndGivesThemBack) {
  reserve_.keep(4);
  struct stat info{};
  ASSERT_EQ(::lstat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_size, (1 << 20) + 4 * (32 << 10));
  EXPECT_GE(info.st_blocks * 512, info.st_size);
  reserve_.release();
  EXPECT_FALSE(there());
  reserve_.release();  // somebody else has done it
}

TEST_F(ReserveTest, IsNeverLargerThanSixteenMebibytes) {
  reserve_.keep(1'000'000);
  EXPECT_EQ(std::filesystem::file_size(path_), 16u << 20);
}

TEST_F(ReserveTest, IsLookedForOnceAMinute) {
  reserve_.keep(1);
  reserve_.release();
  clock_.pass(std::chrono::seconds(59));
  reserve_.keep(1);
  EXPECT_FALSE(there());
  clock_.pass(std::chrono::seconds(1));
  reserve_.keep(1);
  EXPECT_TRUE(there());
  const std::uint64_t opens = fs_.count(FsCall::kOpen);
  clock_.pass(std::chrono::minutes(1));
  reserve_.keep(1);
  EXPECT_EQ(fs_.count(FsCall::kOpen), opens) << "it is there";
}

TEST_F(ReserveTest, TroubleLeavesNoneAndNothingElse) {
  for (const FsCall call :
       {FsCall::kList, FsCall::kFreeBytes, FsCall::kOpen, FsCall::kWriteAt, FsCall::kSyncAll, FsCall::kClose}) {
    fs_.fail(call, EIO);
    reserve_.keep(1);
    EXPECT_TRUE(std::filesystem::is_empty(temp_.path()));
    clock_.pass(std::chrono::minutes(1));
  }
  reserve_.keep(1);
  EXPECT_TRUE(there());
}

TEST_F(ReserveTest, IsNotMadeOfTheLastSpace) {
  for (const bool roomy : {false, true}) {
    const SmallMount disk("tmpfs", roomy ? "size=5m" : "size=4m");
    if (!disk.mounted()) GTEST_SKIP() << "mounting is not permitted here";
    Reserve reserve(fs_, clock_, disk.path());
    reserve.keep(1);
    EXPECT_EQ(std::filesystem::exists(disk / "reserve"), roomy);
  }
}

// Over NFS a host that removed a file believes for a minute that there is none of that name.
TEST_F(ReserveTest, IsReleasedAgainByAHostThatReleasedItBefore) {
  NfsFileSystem here(*real_, clock_);
  Reserve ours(here, clock_, temp_.path());
  for (int time = 0; time < 3; ++time) {
    Reserve(*real_, clock_, temp_.path()).keep(1);
    ASSERT_TRUE(there());
    ours.release();
    EXPECT_FALSE(there());
  }
}

}  // namespace
}  // namespace slackwater::test
