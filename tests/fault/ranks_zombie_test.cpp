// A rank of an earlier start is held in some phase, while a new run takes over and commits. Then the zombie continues:
// it writes, votes, even decides. None of that takes effect, and it touches nothing of the new run. The tests use no
// locks, as on file systems that have none. With locks a second leader would not even begin.
#include <fmt/format.h>

#include "fault/ranks_fixture.hpp"

namespace slackwater::test {
namespace {

constexpr std::uint64_t kOldRun = 1;
constexpr std::uint64_t kNewRun = 2;

class RanksZombieTest : public ::testing::Test {
 protected:
  [[nodiscard]] std::unique_ptr<Ranks> start(std::uint64_t number) {
    return std::make_unique<Ranks>(directory_ / "run", number, false);
  }
  // As far as a rank comes that is gone from one moment to the next.
  static void vanish(std::unique_ptr<Rank>& rank) {
    static_cast<void>(rank->engine->close(std::chrono::milliseconds(0)));
    rank.reset();
  }
  [[nodiscard]] std::map<std::string, std::string> files_of_new_run() const {
    return files_with(directory_ / "run", {".a2/", "attempt-0002"});
  }

  TempDir directory_{TempDir::in_memory()};
};

class ZombieInPhaseTest : public RanksZombieTest, public ::testing::WithParamInterface<std::tuple<Phase, Role>> {
 protected:
  // One rank of the old run is held at step 2, the others are gone.
  void make_zombie() {
    const auto [phase, role] = GetParam();
    zombie_ = rank_of(role);
    const FaultSite site = site_of(phase, role);
    const bool deaf = phase == Phase::kLearn && role != Role::kLeader;
    FaultFileSystem& leader = *(*old_)[0].fs;
    FaultFileSystem& fs = *(*old_)[zombie_].fs;
    old_->commit_all(1);
    if (deaf) {
      leader.hang(FsCall::kLink, {.path = "/manifest.json"});
    } else {
      fs.hang(site.call, {.path = site.path});
    }
    std::vector<Snapshot> snapshots = old_->save_all(2);
    if (deaf) {
      leader.wait_hung(1);
      fs.hang(site.call, {.path = site.path});
    }
    fs.wait_hung(1);
    if (deaf) {
      leader.release_hung();
      ASSERT_TRUE(snapshots[0].wait(Level::kCommitted, kRealTimeLimit));
    }
    for (std::uint32_t rank = 0; rank < kWorld; ++rank) {
      if (rank == zombie_) continue;
      static_cast<void>(snapshots[rank].wait(Level::kDurable, kRealTimeLimit));
      vanish(old_->ranks[rank]);
    }
    held_ = std::make_unique<Snapshot>(std::move(snapshots[zombie_]));
    committed_before_ = phase == Phase::kLearn ? 2 : 1;
  }

  std::unique_ptr<Ranks> old_ = start(kOldRun);
  std::uint32_t zombie_ = 0;
  std::unique_ptr<Snapshot> held_;
  std::uint64_t committed_before_ = 1;
};

TEST_P(ZombieInPhaseTest, NothingOfItCountsAndNothingOfTheNewRunIsTouched) {
  make_zombie();
  std::unique_ptr<Ranks> next = start(kNewRun);
  std::uint64_t step = next->restore_all(kOldRun);
  EXPECT_EQ(step, committed_before_);
  next->commit_all(++step);
  next->settle();
  const auto files = files_of_new_run();
  ASSERT_GE(files.size(), 2u * kWorld);

  Rank& zombie = (*old_)[zombie_];
  zombie.fs->release_hung();
  const Status late = old_->end_of(*held_);
  EXPECT_TRUE(!late || committed_before_ == 2) << "a zombie was told that its step counts";
  // And on, as if nothing had happened.
  Snapshot more = zombie.save(3);
  const Status further = old_->end_of(more);
  ASSERT_FALSE(further);
  EXPECT_EQ(further.error().kind, ErrorKind::kAborted) << further.error().to_string();
  static_cast<void>(zombie.engine->close());
  EXPECT_EQ(files_of_new_run(), files);

  next->commit_all(++step);
  EXPECT_TRUE(next->visible(step));
  next.reset();
  EXPECT_EQ(start(kNewRun)->restore_all(kNewRun), step);
}

INSTANTIATE_TEST_SUITE_P(Held, ZombieInPhaseTest,
                         ::testing::Combine(::testing::ValuesIn(kPhases), ::testing::ValuesIn(kRoles)),
                         [](const auto& held) {
                           return fmt::format("In_{}_as_{}", to_string(std::get<0>(held.param)),
                                              to_string(std::get<1>(held.param)));
                         });

TEST_F(RanksZombieTest, AWholeRunThatWakesUpCommitsNothing) {
  std::unique_ptr<Ranks> old = start(kOldRun);
  old->commit_all(1);
  for (const auto& rank : old->ranks) rank->fs->hang(FsCall::kSyncData, {.path = ".safetensors"});
  std::vector<Snapshot> held = old->save_all(2);
  for (const auto& rank : old->ranks) rank->fs->wait_hung(1);

  std::unique_ptr<Ranks> next = start(kNewRun);
  EXPECT_EQ(next->restore_all(kOldRun), 1u);
  next->commit_all(2);
  next->settle();
  const auto files = files_of_new_run();

  for (const auto& rank : old->ranks) rank->fs->release_hung();
  for (Snapshot& snapshot : held) {
    EXPECT_FALSE(old->end_of(snapshot));
  }
  old.reset();
  EXPECT_EQ(files_of_new_run(), files);
  next->commit_all(3);
  next.reset();
  EXPECT_EQ(start(kNewRun)->restore_all(kNewRun), 3u);
}

// All votes were in, and the old leader was about to publish: its decision lands while the new run has none yet.
TEST_F(RanksZombieTest, AFormerLeaderThatStillDecidesHasDecidedNothing) {
  std::unique_ptr<Ranks> old = start(kOldRun);
  old->commit_all(1);
  (*old)[0].fs->hang(FsCall::kLink, {.path = "/manifest.json"});
  std::vector<Snapshot> held = old->save_all(2);
  (*old)[0].fs->wait_hung(1);
  for (std::uint32_t rank = 1; rank < kWorld; ++rank) vanish(old->ranks[rank]);

  std::unique_ptr<Ranks> next = start(kNewRun);
  EXPECT_EQ(next->restore_all(kOldRun), 1u);
  (*next)[0].fs->hang(FsCall::kLink, {.path = "/manifest.json"});
  // Its clean-up would take away what the old leader decides about.
  (*next)[0].fs->fail(FsCall::kUnlink, EIO, {.times = kAlways, .path = "step-0000000002.a1"});
  std::vector<Snapshot> snapshots = next->save_all(2);
  (*next)[0].fs->wait_hung(1);
  (*old)[0].fs->release_hung();
  const Status late = old->end_of(held[0]);
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().kind, ErrorKind::kAborted) << late.error().to_string();
  EXPECT_TRUE(std::filesystem::exists(directory_ / "run/step-0000000002.a1/manifest.json")) << "it was to decide";
  EXPECT_FALSE(next->visible(2));

  (*next)[0].fs->release_hung();
  for (Snapshot& snapshot : snapshots) ASSERT_TRUE(snapshot.wait(Level::kCommitted, kRealTimeLimit));
  static_cast<void>((*old)[0].engine->close());
  EXPECT_TRUE(next->visible(2));
  next.reset();
  EXPECT_EQ(start(kNewRun)->restore_all(kNewRun), 2u);
}

// Its leader deletes what its last commit made superfluous, and is held in the middle of it.
TEST_F(RanksZombieTest, AFormerLeaderThatGoesOnDeletingTouchesNothingOfTheNewRun) {
  std::unique_ptr<Ranks> old = start(kOldRun);
  old->commit_all(1);
  old->commit_all(2);
  (*old)[0].fs->hang(FsCall::kUnlink, {.path = "step-0000000001.a1/manifest.json"});
  old->commit_all(3);
  (*old)[0].fs->wait_hung(1);
  for (std::uint32_t rank = 1; rank < kWorld; ++rank) vanish(old->ranks[rank]);

  std::unique_ptr<Ranks> next = start(kNewRun);
  EXPECT_EQ(next->restore_all(kOldRun), 3u);
  next->commit_all(4);
  next->settle();
  const auto files = files_with(directory_ / "run", {".a2/", "attempt-0002", "step-0000000003.a1/"});

  (*old)[0].fs->release_hung();
  static_cast<void>((*old)[0].engine->close());
  EXPECT_EQ(files_with(directory_ / "run", {".a2/", "attempt-0002", "step-0000000003.a1/"}), files);
  next->commit_all(5);
  EXPECT_TRUE(next->visible(4));
}

}  // namespace
}  // namespace slackwater::test
