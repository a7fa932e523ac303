// A restore in which one rank needs many time-outs to read its part. The others wait while it makes progress, and name
// it when it does not. The clock stands still until the test moves it.
#include <array>
#include <functional>
#include <map>

#include "fault/ranks_fixture.hpp"

namespace slackwater::test {
namespace {

class RanksSlowRestoreTest : public ::testing::TestWithParam<Role> {
 protected:
  void SetUp() override { run_.commit_all(1); }

  // All ranks restore; the slow one moves the clock while it plans, and then hangs in its first read.
  void begin(double timeouts) {
    slow().fs->hang(FsCall::kQueueRead, {.path = ".safetensors"});
    for (std::uint32_t rank = 0; rank < kWorld; ++rank) {
      threads_.emplace_back([this, rank, timeouts] {
        const Engine::Plan plan = [&, place = run_[rank].state.plan()](const Checkpoint& checkpoint) {
          ++planned_;
          if (rank == slow_) {
            until([&] { return said("restore-verdicts") >= verdicts_without(GetParam()); });
            move(run_.clock, timeouts);
          }
          return place(checkpoint);
        };
        results_[rank] = run_[rank].engine->restore({}, plan);
        has_ended_[rank] = true;
        ++ended_;
      });
    }
    slow().fs->wait_hung(1);
  }
  void end() {
    slow().fs->release_hung();
    threads_.clear();
  }
  // Files in the channels of this name: a message each, but for what is just being written.
  [[nodiscard]] std::size_t said(const std::string& channel) const {
    std::size_t messages = 0;
    std::error_code gone;
    for (const auto& session : std::filesystem::directory_iterator(directory_ / "run/.slackwater", gone)) {
      if (!session.is_directory()) continue;
      for (const auto& each : std::filesystem::recursive_directory_iterator(session.path(), gone)) {
        const std::string path = each.path();
        if (path.find("/" + channel) != std::string::npos && each.is_regular_file(gone) && !path.ends_with(".tmp"))
          ++messages;
      }
    }
    return messages;
  }
  static void until(const std::function<bool()>& condition) {
    const auto deadline = std::chrono::steady_clock::now() + kRealTimeLimit;
    while (!condition()) {
      if (std::chrono::steady_clock::now() > deadline) {
        ADD_FAILURE() << "it hangs";
        return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  // Until all ranks but the slow one have looked for messages some more times, or have ended. Whoever looks, waits.
  // Whoever has looked since the clock was moved, knows.
  void until_polled() {
    constexpr std::uint64_t kLists = 32;  // directories: a look around lists several
    std::map<std::uint32_t, std::uint64_t> enough;
    for (std::uint32_t rank = 0; rank < kWorld; ++rank) {
      if (rank != slow_) enough[rank] = run_[rank].fs->count(FsCall::kList) + kLists;
    }
    for (const auto& [rank, lists] : enough)
      until([&, rank, lists] { return has_ended_[rank] || run_[rank].fs->count(FsCall::kList) >= lists; });
  }
  // How many messages come from ranks that have read their part and wait. Rank 0 sends none, and a group leader waits
  // for its group.
  [[nodiscard]] static std::size_t verdicts_without(Role slow) {
    switch (slow) {
      case Role::kLeader: return 3;
      case Role::kGroupLeader: return 2;
      case Role::kMember: return 1;
    }
    return 0;
  }
  // Its own, and of those who wait for it and are waited for themselves. Who only listens gives none.
  [[nodiscard]] static std::size_t signs_of(Role slow) {
    switch (slow) {
      case Role::kLeader: return 1;
      case Role::kGroupLeader: return 2;
      case Role::kMember: return 3;
    }
    return 0;
  }
  Rank& slow() { return run_[slow_]; }

  TempDir directory_{TempDir::in_memory()};
  Ranks run_{directory_ / "run", 1};
  const std::uint32_t slow_ = rank_of(GetParam());
  std::vector<Result<std::optional<Restored>>> results_ =
      std::vector<Result<std::optional<Restored>>>(kWorld, std::optional<Restored>());
  std::atomic<std::uint32_t> planned_{0};  // ranks that know which version they restore
  std::array<std::atomic<bool>, kWorld> has_ended_{};
  std::atomic<std::uint32_t> ended_{0};  // how many of them
  std::vector<std::jthread> threads_;    // ended before the rest
};

INSTANTIATE_TEST_SUITE_P(Roles, RanksSlowRestoreTest, ::testing::ValuesIn(kRoles),
                         [](const auto& each) { return std::string(to_string(each.param)); });

TEST_P(RanksSlowRestoreTest, IsWaitedForAsLongAsItComesFurther) {
  // Each move alone is less than the shortest wait for this rank, and both together are more than the longest.
  const double timeouts = GetParam() == Role::kLeader ? 2.0 : 0.9;
  begin(timeouts);
  until([&] { return said("restore-heartbeats") >= signs_of(GetParam()); });
  move(run_.clock, timeouts);
  end();
  for (std::uint32_t rank = 0; rank < kWorld; ++rank) {
    ASSERT_TRUE(results_[rank]) << "rank " << rank << ": " << results_[rank].error().to_string();
    ASSERT_TRUE(*results_[rank]);
    EXPECT_EQ((*results_[rank])->version.step, 1u);
    EXPECT_EQ(run_[rank].state.number(), run_[rank].content_of(1));
    EXPECT_EQ(run_[rank].state.difference(), std::nullopt);
  }
  run_.commit_all(2);
}

TEST_P(RanksSlowRestoreTest, IsNamedWhenItHangs) {
  begin(0);
  until([&] { return planned_ == kWorld; });
  until_polled();  // all have placed their part, and wait since the same moment
  move(run_.clock, GetParam() == Role::kLeader ? 2.0 : 0.9);  // less than anybody waits
  for (int parts = 0; parts < 100 && ended_ < kWorld - 1; ++parts) {
    until_polled();  // whose time is up says so,
    until_polled();  // and the others hear of it, before anybody else's time is up
    move(run_.clock, 0.05);
  }
  until([&] { return ended_ == kWorld - 1; });
  slow().fs->release_hung();
  until([&] {
    move(run_.clock, 0.01);
    return ended_ == kWorld;
  });
  end();
  EXPECT_FALSE(results_[slow_]) << "it has restored what the others have not";
  // What rank 3 says reaches rank 0 through the group leader of its group.
  const std::string silent = GetParam() == Role::kGroupLeader ? "ranks 2, 3" : "rank " + std::to_string(slow_);
  for (std::uint32_t rank = 0; rank < kWorld; ++rank) {
    if (rank == slow_) continue;
    ASSERT_FALSE(results_[rank]);
    EXPECT_EQ(results_[rank].error().kind, ErrorKind::kTimeout);
    const std::string& message = results_[rank].error().message;
    EXPECT_NE(message.find(silent + " did not say"), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace slackwater::test
