#include "os/transfer.hpp"

#include <cerrno>

#include <gtest/gtest.h>

namespace slackwater {
namespace {

TEST(Transfer, FinishesWithOneFullAnswer) {
  Transfer transfer(IoOp::kWrite, 100, false);
  EXPECT_EQ(transfer.piece_start(), 0u);
  EXPECT_EQ(transfer.piece_bytes(), 100u);
  ASSERT_TRUE(transfer.advance(100));
  EXPECT_EQ(transfer.result("p").value(), 100u);
}

TEST(Transfer, GoesOnAfterAShortAnswerFromWhereItStopped) {
  Transfer transfer(IoOp::kWrite, 100, false);
  ASSERT_FALSE(transfer.advance(30));
  EXPECT_EQ(transfer.piece_start(), 30u);
  EXPECT_EQ(transfer.piece_bytes(), 70u);
  ASSERT_FALSE(transfer.advance(20));
  EXPECT_EQ(transfer.piece_start(), 50u);
  ASSERT_TRUE(transfer.advance(50));
  EXPECT_EQ(transfer.result("p").value(), 100u);
}

TEST(Transfer, UnderDirectIoGoesOnFromABoundary) {
  Transfer transfer(IoOp::kWrite, 16384, true);
  ASSERT_FALSE(transfer.advance(5000));
  EXPECT_EQ(transfer.piece_start(), 4096u);
  EXPECT_EQ(transfer.piece_bytes(), 12288u);
  ASSERT_TRUE(transfer.advance(12288));
  EXPECT_EQ(transfer.result("p").value(), 16384u);
}

TEST(Transfer, AReadEndsWhereTheFileDoes) {
  Transfer buffered(IoOp::kRead, 100, false);
  ASSERT_FALSE(buffered.advance(40));
  ASSERT_TRUE(buffered.advance(0));
  EXPECT_EQ(buffered.result("p").value(), 40u);

  // The second answer repeats the last 904 bytes of the file. Nothing is new, so that was the end.
  Transfer direct(IoOp::kRead, 8192, true);
  ASSERT_FALSE(direct.advance(5000));
  EXPECT_EQ(direct.piece_start(), 4096u);
  ASSERT_TRUE(direct.advance(904));
  EXPECT_EQ(direct.result("p").value(), 5000u);
}

TEST(Transfer, ALateErrorFailsTheWholeRequest) {
  Transfer transfer(IoOp::kWrite, 100, false);
  ASSERT_FALSE(transfer.advance(50));
  ASSERT_TRUE(transfer.advance(-ENOSPC));
  const auto result = transfer.result("/the/file");
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().kind, ErrorKind::kNoSpace);
  EXPECT_EQ(result.error().sys_errno, ENOSPC);
  EXPECT_EQ(result.error().path, "/the/file");
}

TEST(Transfer, InterruptionsAreRetriedButNotForever) {
  for (const int sys_errno : {EINTR, EAGAIN}) {
    Transfer transfer(IoOp::kRead, 100, false);
    int answers = 1;
    while (!transfer.advance(-sys_errno)) {
      EXPECT_EQ(transfer.piece_start(), 0u);
      ASSERT_LT(++answers, 1000);
    }
    EXPECT_GT(answers, 10);
    EXPECT_EQ(transfer.result("p").error().sys_errno, sys_errno);
  }
}

TEST(Transfer, ProgressForgivesEarlierInterruptions) {
  Transfer transfer(IoOp::kRead, 1000, false);
  for (int byte = 0; byte < 999; ++byte) {
    for (int i = 0; i < 50; ++i) ASSERT_FALSE(transfer.advance(-EINTR));
    ASSERT_FALSE(transfer.advance(1));
  }
  ASSERT_TRUE(transfer.advance(1));
  EXPECT_EQ(transfer.result("p").value(), 1000u);
}

TEST(Transfer, AWriteThatNeverMovesAnythingFails) {
  Transfer transfer(IoOp::kWrite, 100, false);
  int answers = 1;
  while (!transfer.advance(0)) ASSERT_LT(++answers, 1000);
  EXPECT_EQ(transfer.result("p").error().sys_errno, EIO);
}

TEST(Transfer, NothingToMoveIsDoneAtOnce) {
  Transfer transfer(IoOp::kWrite, 0, true);
  ASSERT_TRUE(transfer.advance(0));
  EXPECT_EQ(transfer.result("p").value(), 0u);
}

TEST(Transfer, AsksForAtMostOneGibibyteAtOnce) {
  const Transfer transfer(IoOp::kRead, std::uint64_t{5} << 30, true);
  EXPECT_EQ(transfer.piece_bytes(), std::uint64_t{1} << 30);
}

}  // namespace
}  // namespace slackwater
