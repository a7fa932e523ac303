// Calls of restore() that go astray on some ranks: whatever became of them, the next one that all ranks make together
// works, and so do the saves after it. On a clock that stands still until the test moves it.
#include "fault/carried_ranks.hpp"

namespace slackwater::test {
namespace {

class RanksRestoreCallsTest : public ::testing::TestWithParam<Carrier> {
 protected:
  using Outcomes = std::vector<CarriedRanks::Outcome>;

  void SetUp() override { run_.commit_all(1); }
  // Twice, so that whatever parted stays together.
  void expect_next_restore_works() {
    run_.restore_all(step_);
    run_.commit_all(++step_);
    run_.restore_all(step_);
    run_.commit_all(++step_);
  }
  static void expect_failed(const Outcomes& outcomes, ErrorKind kind, const std::string& words) {
    for (const auto& outcome : outcomes) {
      ASSERT_FALSE(outcome);
      EXPECT_EQ(outcome.error().kind, kind) << outcome.error().to_string();
      EXPECT_NE(outcome.error().message.find(words), std::string::npos) << outcome.error().message;
    }
  }

  static constexpr bool kTimePasses = true;
  TempDir directory_{TempDir::in_memory()};
  CarriedRanks run_{directory_ / "run", GetParam()};
  std::uint64_t step_ = 1;
};

INSTANTIATE_TEST_SUITE_P(Carriers, RanksRestoreCallsTest, ::testing::ValuesIn(kCarriers),
                         [](const auto& each) { return std::string(to_string(each.param)); });

TEST_P(RanksRestoreCallsTest, AfterARankCalledOnceMoreThanTheOthers) {
  for (const std::uint32_t alone : {3u, 2u, 1u, 0u}) {
    SCOPED_TRACE(alone);
    run_.restore_all(step_);
    // The second call of this rank comes when the others have gone on.
    const Outcomes again = run_.restore({alone}, kTimePasses);
    expect_failed(again, ErrorKind::kTimeout, "call restore on all ranks, equally often");
    EXPECT_TRUE(again[0].error().retryable);
    if (alone == 2) {
      EXPECT_NE(again[0].error().message.find("rank 3 did not call restore either"), std::string::npos);
    }
    expect_next_restore_works();
  }
}

TEST_P(RanksRestoreCallsTest, AfterARankCalledOnceLess) {
  for (const std::uint32_t absent : {3u, 2u, 1u, 0u}) {
    SCOPED_TRACE(absent);
    std::vector<std::uint32_t> others{0, 1, 2, 3};
    std::erase(others, absent);
    expect_failed(run_.restore(others, kTimePasses), ErrorKind::kTimeout, "call restore on all ranks");
    expect_next_restore_works();
  }
}

TEST_P(RanksRestoreCallsTest, AfterTheLeaderCameWhenTheOthersHadGivenUp) {
  expect_failed(run_.restore({1, 2, 3}, kTimePasses), ErrorKind::kTimeout, "rank 0 did not say");
  expect_failed(run_.restore({0}, kTimePasses), ErrorKind::kTimeout, "ranks 1 to 3 did not call restore");
  expect_next_restore_works();
}

TEST_P(RanksRestoreCallsTest, AfterThePlanOfOneRankRefused) {
  for (const std::uint32_t refusing : {2u, 0u}) {
    const auto plan_of = [&](std::uint32_t rank) -> Engine::Plan {
      if (rank != refusing) return run_[rank].state.plan();
      return [](const Checkpoint&) -> Result<std::vector<Target>> {
        return fail(ErrorKind::kMismatch, "this rank has another model");
      };
    };
    expect_failed(run_.restore({0, 1, 2, 3}, !kTimePasses, plan_of), ErrorKind::kMismatch,
                  fmt::format("rank {}: this rank has another model", refusing));
    expect_next_restore_works();
  }
}

TEST_P(RanksRestoreCallsTest, AfterOneRankCouldNotListTheDirectory) {
  run_[2].fs->fail(FsCall::kList, EIO, {.times = kAlways, .path = "/run"});
  for (const auto& outcome : run_.restore({0, 1, 2, 3}, kTimePasses)) EXPECT_FALSE(outcome);
  run_[2].fs->clear_faults();
  expect_next_restore_works();
}

// Through the directory, where one rank alone can be deaf.
class RanksDeafRestoreTest : public RanksRestoreCallsTest {};

INSTANTIATE_TEST_SUITE_P(Carriers, RanksDeafRestoreTest, ::testing::Values(Carrier::kDirectory),
                         [](const auto& each) { return std::string(to_string(each.param)); });

TEST_P(RanksDeafRestoreTest, ARankThatDidNotLearnHowARestoreEndedSaysSoAtTheNextSave) {
  run_[3].fs->fail(FsCall::kList, EIO, {.times = kAlways, .path = "/restore-choices"});
  const Outcomes outcomes = run_.restore({0, 1, 2, 3}, kTimePasses, {}, 3);  // rank 3 waits until its time is up
  run_[3].fs->clear_faults();
  for (const std::uint32_t rank : {0u, 1u, 2u}) ASSERT_TRUE(outcomes[rank]) << outcomes[rank].error().to_string();
  ASSERT_FALSE(outcomes[3]);
  EXPECT_EQ(outcomes[3].error().kind, ErrorKind::kTimeout);

  // The others are told at once, though no time passes, as soon as rank 0 has said what it goes on from.
  std::vector<Snapshot> snapshots;
  for (const std::uint32_t rank : {0u, 1u, 2u}) snapshots.push_back(run_[rank].save(2));
  CarriedRanks::until([&] { return run_.messages("attempts/").size() == 2; });
  snapshots.push_back(run_[3].save(2));
  for (Snapshot& snapshot : snapshots) {
    const Status status = snapshot.wait(Level::kCommitted, kRealTimeLimit);
    ASSERT_FALSE(status);
    EXPECT_NE(status.error().message.find("rank 0 goes on from step 1, restore number 1, rank 3 from the state it was "
                                          "started with: a restore did not end well on all ranks; call restore on all"),
              std::string::npos)
        << status.error().message;
  }
  expect_next_restore_works();
}

// Nobody knows how it ended then, so everybody asks rank 0 at the next save, which says that nothing has changed.
TEST_P(RanksDeafRestoreTest, AnEndThatCouldNotBeToldIsNoneAndAllSaveOnAsBefore) {
  run_[0].fs->fail(FsCall::kLink, EIO, {.path = "/restore-choices"});
  for (const auto& outcome : run_.restore({0, 1, 2, 3}, kTimePasses)) EXPECT_FALSE(outcome);
  run_.commit_all(++step_);
  run_.commit_all(++step_);
  expect_next_restore_works();
}

}  // namespace
}  // namespace slackwater::test
