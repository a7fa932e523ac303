#include "os/posix_lock.hpp"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "os/file_system.hpp"
#include "support/child_process.hpp"
#include "support/temp_dir.hpp"

namespace slackwater {
namespace {

class PosixLockTest : public testing::Test {
 protected:
  test::TempDir dir_;
  const std::string path_ = dir_ / "lock";
  std::unique_ptr<FileSystem> fs_ = make_posix_file_system();
};

TEST_F(PosixLockTest, TheSecondIsToldWhoHoldsIt) {
  const auto first = fs_->try_lock(path_);
  ASSERT_TRUE(first);
  const auto second = fs_->try_lock(path_);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().kind, ErrorKind::kBusy);
  EXPECT_TRUE(second.error().retryable);
  EXPECT_NE(second.error().message.find("process " + std::to_string(::getpid()) + " on "), std::string::npos)
      << second.error().message;
}

TEST_F(PosixLockTest, AHolderThatIsNoRunSaysWhatItIsAndWhatToDo) {
  const std::string process = "process " + std::to_string(::getpid()) + " on ";
  {
    const auto first = fs_->try_lock(path_).value();
    first->explain("a keeper writes here", "wait for it");
    const auto second = fs_->try_lock(path_);
    ASSERT_FALSE(second);
    EXPECT_EQ(second.error().kind, ErrorKind::kBusy);
    const std::string& said = second.error().message;
    EXPECT_TRUE(said.starts_with("a keeper writes here (" + process)) << said;
    EXPECT_TRUE(said.ends_with("); wait for it")) << said;
  }
  const auto third = fs_->try_lock(path_).value();
  const auto fourth = fs_->try_lock(path_);
  ASSERT_FALSE(fourth);
  EXPECT_TRUE(fourth.error().message.starts_with("another run (" + process)) << fourth.error().message;
}

TEST_F(PosixLockTest, TheTextOfALockFileIsTakenLineByLineAsFarAsItIsPrintable) {
  const LockHolder all = parse_lock_holder("process 1\na keeper\nwait\nmore\n");
  EXPECT_EQ(all.process + "|" + all.doing + "|" + all.remedy, "process 1|a keeper|wait");
  const LockHolder bad = parse_lock_holder("process 1\na \x1b[2Jkeeper\nwait\n");
  EXPECT_EQ(bad.process + "|" + bad.doing + "|" + bad.remedy, "process 1|a |");
  EXPECT_EQ(parse_lock_holder("").process, "");
  EXPECT_EQ(parse_lock_holder("process 1").doing, "");
}

TEST_F(PosixLockTest, IsFreeAgainWhenDestroyed) {
  {
    const auto lock = fs_->try_lock(path_).value();
  }
  EXPECT_TRUE(fs_->try_lock(path_));
}

TEST_F(PosixLockTest, UntrustedTextInTheFileIsNotRepeated) {
  const auto lock = fs_->try_lock(path_).value();
  std::ofstream(path_) << "\x1b[2Jevil\n";
  const auto second = fs_->try_lock(path_);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().message.find("evil"), std::string::npos);
}

TEST_F(PosixLockTest, AMissingDirectoryIsAnError) {
  const auto lock = fs_->try_lock(dir_ / "none/lock");
  ASSERT_FALSE(lock);
  EXPECT_EQ(lock.error().kind, ErrorKind::kNotFound);
}

TEST_F(PosixLockTest, AChildThatDropsItsCopyDoesNotFreeTheParentsLock) {
  auto lock = fs_->try_lock(path_).value();
  EXPECT_EQ(test::run_in_child([&] {
              lock.reset();
              return 0;
            }),
            0);
  EXPECT_FALSE(fs_->try_lock(path_));
}

// A trainer takes the lock, forks a data loader and is killed; the loader lives on. A restart must get the lock.
TEST_F(PosixLockTest, AForkedChildThatOutlivesTheHolderDoesNotKeepIt) {
  std::array<int, 2> ready{};
  std::array<int, 2> loader_life{};
  ASSERT_EQ(::pipe(ready.data()), 0);
  ASSERT_EQ(::pipe(loader_life.data()), 0);
  const pid_t trainer = ::fork();
  ASSERT_GE(trainer, 0);
  if (trainer == 0) {
    const auto lock = fs_->try_lock(path_);
    if (!lock) ::_exit(1);
    char byte = 0;
    if (::fork() == 0) {
      ::close(loader_life[1]);
      [[maybe_unused]] ssize_t size = ::write(ready[1], "r", 1);
      size = ::read(loader_life[0], &byte, 1);  // until the test ends
      ::_exit(0);
    }
    ::pause();
    ::_exit(1);
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  EXPECT_FALSE(fs_->try_lock(path_));
  ::kill(trainer, SIGKILL);
  ASSERT_EQ(::waitpid(trainer, nullptr, 0), trainer);
  EXPECT_TRUE(fs_->try_lock(path_));
  for (const int end : {ready[0], ready[1], loader_life[0], loader_life[1]}) ::close(end);
}

}  // namespace
}  // namespace slackwater
