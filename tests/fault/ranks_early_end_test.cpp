// A wait ends as soon as it is known that what it waits for cannot come. The clock of these ranks stands still, so a
// rank that waited for a time-out would wait for ever.
#include <fmt/format.h>

#include "fault/ranks_fixture.hpp"

namespace slackwater::test {
namespace {

class RanksEarlyEndTest : public ::testing::Test {
 protected:
  static void expect_abort(std::vector<Snapshot>& snapshots, const std::vector<std::uint32_t>& ranks,
                           const std::string& words) {
    std::optional<std::string> first;
    for (const std::uint32_t rank : ranks) {
      const Status status = snapshots[rank].wait(Level::kCommitted, kRealTimeLimit);
      ASSERT_FALSE(status);
      EXPECT_EQ(status.error().kind, ErrorKind::kAborted) << status.error().to_string();
      EXPECT_NE(status.error().message.find(words), std::string::npos) << status.error().message;
      EXPECT_EQ(status.error().message, first.value_or(status.error().message));
      first = status.error().message;
    }
  }

  TempDir directory_{TempDir::in_memory()};
  Ranks run_{directory_ / "run", 1};
};

TEST_F(RanksEarlyEndTest, ARankThatSavedALaterStepIsNamedAtOnceAndTheLaterStepCommits) {
  std::uint64_t step = 1;
  run_.commit_all(step);
  for (const std::uint32_t ahead : {1u, 2u, 3u}) {
    std::vector<Snapshot> snapshots;
    for (std::uint32_t rank = 0; rank < kWorld; ++rank)
      snapshots.push_back(run_[rank].save(rank == ahead ? step + 2 : step + 1));
    std::vector<std::uint32_t> others{0, 1, 2, 3};
    std::erase(others, ahead);
    expect_abort(snapshots, others, fmt::format("rank {}: saved step {} instead", ahead, step + 2));
    step += 2;
    std::vector<Snapshot> rest;
    for (const std::uint32_t rank : others) rest.push_back(run_[rank].save(step));
    for (Snapshot& snapshot : rest) ASSERT_TRUE(snapshot.wait(Level::kCommitted, kRealTimeLimit));
    ASSERT_TRUE(snapshots[ahead].wait(Level::kCommitted, kRealTimeLimit));
  }
}

TEST_F(RanksEarlyEndTest, ARankThatSavedAStepOfItsOwnIsReleasedAtOnceAndTheNextStepCommits) {
  std::uint64_t step = 1;
  run_.commit_all(step);
  for (const std::uint32_t alone : {0u, 1u, 2u, 3u}) {
    std::vector<Snapshot> snapshots;
    snapshots.push_back(run_[alone].save(++step));
    ++step;
    for (std::uint32_t rank = 0; rank < kWorld; ++rank) {
      if (rank != alone) snapshots.push_back(run_[rank].save(step));
    }
    expect_abort(snapshots, {0}, fmt::format("saved step {} instead", step));
    snapshots[0] = run_[alone].save(step);
    for (Snapshot& snapshot : snapshots) {
      const Status status = snapshot.wait(Level::kCommitted, kRealTimeLimit);
      ASSERT_TRUE(status) << status.error().to_string();
    }
  }
}

TEST_F(RanksEarlyEndTest, AGroupLeaderDoesNotWaitForALateMemberOnceTheStepIsGivenUp) {
  run_.commit_all(1);
  run_[3].fs->hang(FsCall::kSyncData, {.path = ".safetensors"});
  run_[0].fs->fail(FsCall::kSyncData, EIO, {.path = ".safetensors"});
  std::vector<Snapshot> snapshots = run_.save_all(2);
  run_[3].fs->wait_hung(1);
  expect_abort(snapshots, {1, 2}, "rank 0: injected fault");
  run_[3].fs->release_hung();
  expect_abort(snapshots, {3}, "rank 0: injected fault");
  run_.commit_all(3);
}

TEST_F(RanksEarlyEndTest, AnAttemptThatCannotBeClaimedAbortsTheStepAtOnceAndTheNextTriesAgain) {
  run_[0].fs->fail(FsCall::kLink, EIO, {.times = 2, .path = "/attempt-"});
  for (const std::uint64_t step : {1u, 2u}) {
    std::vector<Snapshot> snapshots = run_.save_all(step);
    expect_abort(snapshots, {1, 2, 3}, "rank 0: injected fault");
    EXPECT_EQ(snapshots[0].wait(Level::kCommitted, kRealTimeLimit).error().kind, ErrorKind::kIo);
  }
  run_.commit_all(3);
}

TEST_F(RanksEarlyEndTest, ARankThatCannotAcceptTheAttemptSaysSoAndTheNextStepCommits) {
  for (const std::uint32_t failing : {3u, 2u})
    run_[failing].fs->fail(FsCall::kOpen, EIO, {.times = kAlways, .path = "/attempt-"});
  std::vector<Snapshot> snapshots = run_.save_all(1);
  expect_abort(snapshots, {0, 1}, "rank 2: injected fault");
  for (const std::uint32_t failing : {3u, 2u})
    EXPECT_EQ(snapshots[failing].wait(Level::kCommitted, kRealTimeLimit).error().kind, ErrorKind::kIo);
  for (const std::uint32_t failing : {3u, 2u}) run_[failing].fs->clear_faults();
  run_.commit_all(2);
}

// A leader that was held up finds the abort that another rank has written, and everybody has that rank's words.
TEST_F(RanksEarlyEndTest, ALeaderThatComesLateObeysAtOnceThoughFilesAreGone) {
  run_.commit_all(1);
  run_[0].fs->hang(FsCall::kSyncData, {.path = ".safetensors"});
  std::vector<Snapshot> snapshots = run_.save_all(2);
  run_[0].fs->wait_hung(1);
  for (std::uint32_t rank = 1; rank < kWorld; ++rank) {
    ASSERT_FALSE(run_.end_of(snapshots[rank]));
    static_cast<void>(run_[rank].engine->wait(Level::kCommitted));  // it has taken its files away
  }
  run_[0].fs->release_hung();  // and from here on the clock stands still
  expect_abort(snapshots, {0, 1, 2, 3}, "rank 0 had not decided when the deadline of rank");
  run_.commit_all(3);
}

}  // namespace
}  // namespace slackwater::test
