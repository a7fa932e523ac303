#include "support/fault_file_system.hpp"

#include <atomic>
#include <cerrno>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "support/aligned_buffer.hpp"
#include "support/temp_dir.hpp"

namespace slackwater::test {
namespace {

class FaultFileSystemTest : public testing::Test {
 protected:
  TempDir dir_;
  std::unique_ptr<FileSystem> posix_ = make_posix_file_system();
  FaultFileSystem fs_{*posix_};
};

TEST_F(FaultFileSystemTest, FailsTheCallsItWasToldToAndNoOthers) {
  fs_.fail(FsCall::kMakeDirectory, EIO, {.nth = 2, .times = 2});
  std::vector<bool> made;
  for (const char* name : {"a", "b", "c", "d"}) made.push_back(fs_.make_directory(dir_ / name).has_value());
  EXPECT_EQ(made, (std::vector{true, false, false, true}));
  EXPECT_EQ(fs_.count(FsCall::kMakeDirectory), 4u);
  EXPECT_EQ(posix_->list(dir_.path())->size(), 2u);
}

TEST_F(FaultFileSystemTest, CountsOnlyCallsOfTheNamedPath) {
  fs_.fail(FsCall::kMakeDirectory, ENOSPC, {.times = kAlways, .path = "bad"});
  EXPECT_TRUE(fs_.make_directory(dir_ / "good"));
  EXPECT_EQ(fs_.make_directory(dir_ / "bad").error().kind, ErrorKind::kNoSpace);
  EXPECT_EQ(fs_.make_directory(dir_ / "bad").error().kind, ErrorKind::kNoSpace);
  fs_.clear_faults();
  EXPECT_TRUE(fs_.make_directory(dir_ / "bad"));
}

TEST_F(FaultFileSystemTest, QueuedWritesFailAsCompletions) {
  const auto file = fs_.open(dir_ / "f", OpenMode::kCreateExclusive, false).value();
  const auto queue = fs_.make_queue({.depth = 4}).value();
  AlignedBuffer buffer(4096);
  fs_.fail(FsCall::kQueueWrite, ENOSPC, {.nth = 2});
  for (std::uint64_t tag = 0; tag < 3; ++tag) {
    ASSERT_TRUE(queue->submit({IoOp::kWrite, file.get(), buffer.data(), 4096, tag * 4096, -1, tag}));
  }
  std::vector<IoCompletion> completions;
  while (queue->in_flight() > 0) ASSERT_TRUE(queue->wait(completions, std::nullopt));
  ASSERT_EQ(completions.size(), 3u);
  for (const IoCompletion& completion : completions) EXPECT_EQ(completion.size_bytes.has_value(), completion.tag != 1);
}

TEST_F(FaultFileSystemTest, HeldWritesCompleteAfterTheirRelease) {
  const auto file = fs_.open(dir_ / "f", OpenMode::kCreateExclusive, false).value();
  const auto queue = fs_.make_queue({.depth = 4}).value();
  AlignedBuffer buffer(4096);
  fs_.hold_writes();
  ASSERT_TRUE(queue->submit({IoOp::kWrite, file.get(), buffer.data(), 4096, 0, -1, 9}));
  fs_.wait_held(1);
  std::vector<IoCompletion> completions;
  ASSERT_TRUE(queue->wait(completions, std::chrono::milliseconds(5)));
  EXPECT_TRUE(completions.empty());
  EXPECT_EQ(queue->in_flight(), 1u);
  EXPECT_EQ(file->status()->size_bytes, 0u);
  fs_.release_writes();
  while (queue->in_flight() > 0) ASSERT_TRUE(queue->wait(completions, std::nullopt));
  ASSERT_EQ(completions.size(), 1u);
  EXPECT_EQ(completions[0].tag, 9u);
  EXPECT_EQ(file->status()->size_bytes, 4096u);
}

TEST_F(FaultFileSystemTest, AHungCallReturnsWhenItIsReleasedAndNotBefore) {
  fs_.hang(FsCall::kMakeDirectory, {.path = "slow"});
  std::atomic<bool> returned = false;
  std::jthread caller([&] {
    EXPECT_TRUE(fs_.make_directory(dir_ / "slow"));
    returned = true;
  });
  fs_.wait_hung(1);
  EXPECT_FALSE(returned);
  EXPECT_TRUE(fs_.make_directory(dir_ / "quick")) << "others are not held up";
  EXPECT_FALSE(posix_->status(dir_ / "slow"));
  fs_.release_hung();
  caller.join();
  EXPECT_TRUE(posix_->status(dir_ / "slow"));
}

TEST_F(FaultFileSystemTest, ADelayedCallIsLateAndNothingElse) {
  using namespace std::chrono_literals;
  fs_.delay(FsCall::kMakeDirectory, 20ms);
  const auto began = std::chrono::steady_clock::now();
  EXPECT_TRUE(fs_.make_directory(dir_ / "late"));
  EXPECT_GE(std::chrono::steady_clock::now() - began, 20ms);
}

TEST_F(FaultFileSystemTest, ACloseThatFailsHasClosedAllTheSame) {
  const auto file = fs_.open(dir_ / "f", OpenMode::kCreateExclusive, false).value();
  fs_.fail(FsCall::kClose, EIO);
  EXPECT_FALSE(file->close());
  EXPECT_LT(file->descriptor(), 0);
}

}  // namespace
}  // namespace slackwater::test
