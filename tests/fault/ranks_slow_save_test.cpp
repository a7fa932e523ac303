// A step at which one rank takes many time-outs to write its part: waited for while it comes further, named when it
// does not. On a clock that stands still until the test moves it.
#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "fault/carried_ranks.hpp"

namespace slackwater::test {
namespace {

class RanksSlowSaveTest : public ::testing::TestWithParam<std::tuple<Carrier, Role>> {
 protected:
  static constexpr std::uint64_t kMiB = 1u << 20;

  void SetUp() override {
    slow().state = PatternState({{"w", 12 * kMiB}, {"bias", 100}});
    run_.commit_all(1);
  }
  // All ranks save. All but the slow one, which was made slow before, have written their part. Whoever waits for its
  // vote has begun to wait. Otherwise another rank could reach its deadline first when the clock is moved.
  void begin_step() {
    for (const std::uint32_t rank : waiters()) run_[rank].fs->watch(FsCall::kList, "step-0000000002");
    snapshots_ = run_.save_all(2);
    for (std::uint32_t rank = 0; rank < kWorld; ++rank) {
      if (rank != slow_) {
        ASSERT_TRUE(snapshots_[rank].wait(Level::kDurable, kRealTimeLimit));
      }
    }
    for (const std::uint32_t rank : waiters()) until_polled(rank);
  }
  // The ranks that wait for the vote of the slow one, ordered by deadline. (All ranks wait for the outcome.)
  [[nodiscard]] static std::vector<std::uint32_t> waiters() {
    switch (std::get<Role>(GetParam())) {
      case Role::kLeader: return {};
      case Role::kGroupLeader: return {0};
      case Role::kMember: return {2, 0};
    }
    return {};
  }
  // Returns when this rank, while it waits for votes, has checked twice more whether the step was decided without it.
  // It polls for votes several times between such checks. Returns also if the rank no longer waits.
  void until_polled(std::uint32_t rank) {
    const std::uint64_t before = run_[rank].fs->watched_calls();
    CarriedRanks::until([&] {
      return snapshots_[rank].error() || run_[rank].fs->watched_calls() >= before + 2 ||
             (rank == 2 && !run_.messages("votes-2-").empty());
    });
  }
  void TearDown() override { slow().fs->release_writes(); }

  [[nodiscard]] bool any_ended() const {
    return std::ranges::any_of(snapshots_, [](const Snapshot& snapshot) {
      return snapshot.error() || snapshot.progress().level == Level::kCommitted;
    });
  }
  void release_a_write() {
    const std::uint64_t written = snapshots_[slow_].progress().written_bytes;
    slow().fs->release_writes(1);
    CarriedRanks::until([&] { return snapshots_[slow_].progress().written_bytes > written; });
  }
  // One write goes on, and then a good part of a time-out passes before the next. Less than a half: the clock jumps, so
  // heartbeats may come a jump later than in real time.
  void come_further() {
    release_a_write();
    const std::uint64_t before = run_.heartbeat_of(0);
    move(run_.clock, 0.4);
    auto first_heartbeat_by = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    // Whoever waits for it waits on: it has told them, and rank 0 has passed it on to all.
    CarriedRanks::until([&] {
      // A busy machine may begin to count the bytes of this step only after the jump: then a quarter of the time-out
      // passes from there until the first heartbeat, which tells of the next bytes.
      if (run_.heartbeat_of(slow_) == 0 && std::chrono::steady_clock::now() > first_heartbeat_by) {
        first_heartbeat_by = std::chrono::steady_clock::time_point::max();
        release_a_write();
        move(run_.clock, 0.26);
      }
      return any_ended() || run_.heartbeat_of(0) > before;
    });
  }
  // The first jump is shorter than any deadline. Then time passes slowly: before each next part, every rank that waits
  // for the slow one has seen the effect of the last part, the one with the earliest deadline first.
  void pass_until_given_up() {
    move(run_.clock, 0.8);
    const bool anybody_may_be_first = waiters().empty();
    CarriedRanks::until([&] {
      for (const std::uint32_t rank : waiters()) until_polled(rank);
      if (anybody_may_be_first) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      for (std::uint32_t rank = 0; rank < kWorld; ++rank) {
        if (rank == slow_ || snapshots_[rank].error()) continue;
        // From the moment that rank 0 has decided, no more time is needed.
        if (anybody_may_be_first || !snapshots_[0].error()) move(run_.clock, 0.1);
        return false;
      }
      return true;
    });
  }
  void expect_named(const std::string& words) {
    for (std::uint32_t rank = 0; rank < kWorld; ++rank) {
      if (rank == slow_) continue;
      const Status status = snapshots_[rank].wait(Level::kCommitted, kRealTimeLimit);
      ASSERT_FALSE(status) << "rank " << rank;
      EXPECT_EQ(status.error().kind, ErrorKind::kAborted);
      // Rank 0 cannot name itself. The rank that reaches its deadline first does.
      const std::string named = slow_ == 0 ? "rank 0 had not decided" : fmt::format("rank {}: {}", slow_, words);
      EXPECT_NE(status.error().message.find(named), std::string::npos) << status.error().message;
      EXPECT_EQ(status.error().message, snapshots_[slow_ == 0 ? 1 : 0].error()->message);
    }
    slow().fs->release_writes();
    slow().fs->release_hung();
    EXPECT_FALSE(snapshots_[slow_].wait(Level::kCommitted, kRealTimeLimit));
    for (std::uint32_t rank = 0; rank < kWorld; ++rank) static_cast<void>(run_[rank].engine->wait(Level::kCommitted));
    run_.commit_all(3);
  }
  Rank& slow() { return run_[slow_]; }

  TempDir directory_{TempDir::in_memory()};
  const std::uint32_t slow_ = rank_of(std::get<Role>(GetParam()));
  CarriedRanks run_{directory_ / "run", std::get<Carrier>(GetParam())};
  std::vector<Snapshot> snapshots_;
};

INSTANTIATE_TEST_SUITE_P(Ranks, RanksSlowSaveTest,
                         ::testing::Combine(::testing::ValuesIn(kCarriers), ::testing::ValuesIn(kRoles)),
                         [](const auto& each) {
                           return fmt::format("{}_through_{}", to_string(std::get<Role>(each.param)),
                                              to_string(std::get<Carrier>(each.param)));
                         });

TEST_P(RanksSlowSaveTest, IsWaitedForAsLongAsItComesFurtherAndTheStepCommits) {
  slow().fs->hold_writes();
  begin_step();
  // The others train on, and have their part of the next step written as well.
  std::vector<Snapshot> next;
  for (std::uint32_t rank = 0; rank < kWorld; ++rank) {
    if (rank != slow_) next.push_back(run_[rank].save(3));
  }
  for (int i = 0; i < 8 && !any_ended(); ++i) come_further();
  slow().fs->release_writes();
  for (std::uint32_t rank = 0; rank < kWorld; ++rank) {
    const Status status = snapshots_[rank].wait(Level::kCommitted, kRealTimeLimit);
    ASSERT_TRUE(status) << "rank " << rank << ": " << status.error().to_string();
  }
  next.push_back(slow().save(3));
  for (Snapshot& snapshot : next) {
    const Status status = snapshot.wait(Level::kCommitted, kRealTimeLimit);
    ASSERT_TRUE(status) << status.error().to_string();
  }
  for (std::uint32_t rank = 0; rank < kWorld; ++rank) ASSERT_TRUE(run_[rank].engine->wait(Level::kCommitted));
  EXPECT_TRUE(run_.messages("save-heartbeats").empty()) << "they are taken back when the step is over";
  run_.restore_all(3);
  run_.commit_all(4);
}

TEST_P(RanksSlowSaveTest, IsNamedWhenItHangs) {
  slow().fs->hang(FsCall::kMakeDirectory, {.path = "/step-"});
  begin_step();
  pass_until_given_up();
  expect_named("did not report within");
  EXPECT_TRUE(run_.messages("save-heartbeats").empty()) << "it made no progress";
}

TEST_P(RanksSlowSaveTest, IsNamedWhenItStopsComingFurther) {
  slow().fs->hold_writes();
  begin_step();
  for (int i = 0; i < 4; ++i) come_further();
  pass_until_given_up();
  expect_named("did not report within");
  if (slow_ == 0) return;
  const std::string message = snapshots_[0].error()->message;
  EXPECT_NE(message.find("of its last heartbeat"), std::string::npos) << message;
}

class RanksFastSaveTest : public ::testing::TestWithParam<Carrier> {
 protected:
  TempDir directory_{TempDir::in_memory()};
  CarriedRanks run_{directory_ / "run", GetParam()};
};

INSTANTIATE_TEST_SUITE_P(Ranks, RanksFastSaveTest, ::testing::ValuesIn(kCarriers),
                         [](const auto& each) { return std::string(to_string(each.param)); });

TEST_P(RanksFastSaveTest, AStepThatIsOverWithinAQuarterOfTheTimeoutNeedsNoHeartbeat) {
  run_.commit_all(1);
  for (std::uint64_t step = 2; step <= 4; ++step) {
    run_[3].fs->hold_writes();
    std::vector<Snapshot> snapshots = run_.save_all(step);
    run_[3].fs->wait_held(step - 1);
    move(run_.clock, 0.24);
    for (std::uint32_t rank = 0; rank < 3; ++rank) ASSERT_TRUE(snapshots[rank].wait(Level::kDurable, kRealTimeLimit));
    EXPECT_TRUE(run_.messages("save-heartbeats").empty());
    run_[3].fs->release_writes();
    for (Snapshot& snapshot : snapshots) ASSERT_TRUE(snapshot.wait(Level::kCommitted, kRealTimeLimit));
  }
  EXPECT_TRUE(run_.messages("save-heartbeats").empty());
}

// A trainer that waits in save() because a slow rank holds all up has not stalled: its rank's own disk is idle, and
// that of the other one is not.
class RanksBusySaveTest : public ::testing::Test {
 protected:
  struct Waited {
    std::optional<Error> error;  // of the trainer's save()
    bool first_committed = false;
    std::chrono::steady_clock::duration longest{};  // time in which rank 0 heard nothing, or a little less
  };
  // Rank 0 trains, and rank 3 comes further, slowly, for twice the stall time.
  static Waited train(std::chrono::seconds stall_timeout) {
    using SteadyClock = std::chrono::steady_clock;
    const TempDir directory(TempDir::in_memory());
    CarriedRanks run(directory / "run", Carrier::kStore, [&](Options& options) {
      options.in_flight = 1;
      options.stall_timeout = stall_timeout;
    });
    run[3].state = PatternState({{"w", 40u << 20}});
    Waited waited;
    run.commit_all(1);
    run[3].fs->hold_writes();
    std::vector<Snapshot> snapshots = run.save_all(2);
    for (std::uint32_t rank = 0; rank < 3; ++rank) EXPECT_TRUE(snapshots[rank].wait(Level::kDurable, kRealTimeLimit));
    std::jthread trainer([&] {
      const Snapshot next = run[0].save(3);
      waited.error = next.error();
      waited.first_committed = snapshots[0].progress().level == Level::kCommitted;
    });
    const auto until = SteadyClock::now() + stall_timeout * 2;
    for (auto last = SteadyClock::now(); last < until;) {
      const std::uint64_t before = run.heartbeat_of(0);
      run[3].fs->release_writes(1);
      CarriedRanks::until([&] {
        move(run.clock, 0.01);
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        return snapshots[0].error() || run.heartbeat_of(0) > before ||
               snapshots[0].progress().level == Level::kCommitted;
      });
      const auto now = SteadyClock::now();
      waited.longest = std::max(waited.longest, now - std::exchange(last, now));
    }
    run[3].fs->release_writes();
    for (Snapshot& snapshot : snapshots) {
      const Status status = snapshot.wait(Level::kCommitted, kRealTimeLimit);
      EXPECT_TRUE(status) << status.error().to_string();
    }
    trainer.join();
    for (std::uint32_t rank = 1; rank < kWorld; ++rank) static_cast<void>(run[rank].save(3));
    return waited;
  }
};

TEST_F(RanksBusySaveTest, ATrainerWaitsForRoomLongerThanTheStallTimeoutWhileAnotherRankComesFurther) {
  // On a busy machine rank 0 may hear of it too late. That proves nothing, and the next try has more time.
  for (std::chrono::seconds stall_timeout{3}; stall_timeout < std::chrono::seconds(60); stall_timeout *= 2) {
    const Waited waited = train(stall_timeout);
    if (HasFailure()) return;
    if (waited.error && waited.longest > stall_timeout / 2) continue;
    EXPECT_FALSE(waited.error) << waited.error->to_string();
    EXPECT_TRUE(waited.first_committed);
    return;
  }
  FAIL() << "this machine is far too busy";
}

}  // namespace
}  // namespace slackwater::test
