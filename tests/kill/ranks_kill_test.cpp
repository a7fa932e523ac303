// One of several ranks is killed at a random moment. The rest are ended as a launcher does it, and the job restarts on
// the same or another number of ranks. Every rank must continue from the same step. None may go back behind a step that
// was reported as committed to any rank, and none may read a wrong byte.
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "kill/trainer_process.hpp"
#include "support/effort.hpp"
#include "support/tally.hpp"
#include "support/temp_dir.hpp"

namespace slackwater::test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::minutes kRanksTimeLimit{2};

class RanksKillTest : public ::testing::Test {
 protected:
  [[nodiscard]] std::deque<Trainer> start(std::uint32_t world, std::uint64_t steps, const char* tensors) {
    std::deque<Trainer> trainers;
    for (std::uint32_t rank = 0; rank < world; ++rank)
      trainers.emplace_back(directory_ / "run", 2, steps, "committed", rank, world, tensors);
    return trainers;
  }

  // Kills one of them, then the rest.
  void kill(std::deque<Trainer>& trainers, std::uint64_t round) {
    const std::uint64_t horizon_us = kSanitized ? 2'000'000 : 300'000;
    // Half of the kills fall into training, half anywhere after the start.
    if (round % 2 == 0) trainers[0].listen(Clock::now() + kRanksTimeLimit, "committed");
    const auto victim = static_cast<std::size_t>(random_() % trainers.size());
    trainers[victim].listen(Clock::now() + std::chrono::microseconds(random_() % (horizon_us >> (round % 4))));
    EXPECT_EQ(trainers[victim].end(), 128 + SIGKILL) << "round " << round;
    for (std::size_t rank = 0; rank < trainers.size(); ++rank) {
      if (rank == victim) continue;
      EXPECT_EQ(trainers[rank].end(), 128 + SIGKILL) << "round " << round << ", rank " << rank;
    }
  }

  // All ranks that report where they continue report the same step, and none before a step that was reported as
  // committed. (A trainer that reads wrong bytes ends with its own exit code.)
  void meet(const std::deque<Trainer>& trainers) {
    std::optional<std::uint64_t> first;
    for (const Trainer& trainer : trainers) {
      const auto restored = trainer.last("restored");
      if (!restored) continue;
      EXPECT_GE(*restored, reported_) << "a committed step was lost";
      if (*restored < reported_) ++lost_;
      EXPECT_EQ(*restored, first.value_or(*restored)) << "ranks went on from different steps";
      first = restored;
    }
    for (const Trainer& trainer : trainers) reported_ = std::max(reported_, trainer.last("committed").value_or(0));
  }

  void kill_over_and_over(const std::vector<std::uint32_t>& worlds, const char* tensors, const char* what,
                          const char* disk = "") {
    ::setenv("SLACKWATER_TRAINER_DISK", disk, 1);
    const std::uint64_t kills = *disk == '\0' ? effort("SLACKWATER_RANK_KILLS", 20) : effort("SLACKWATER_ODD_KILLS", 6);
    for (std::uint64_t round = 0; round < kills; ++round) {
      std::deque<Trainer> trainers = start(worlds[round % worlds.size()], 1'000'000, tensors);
      kill(trainers, round);
      meet(trainers);
    }
    EXPECT_GE(reported_, kills / 2) << "killed too early to show anything";
    for (const std::uint32_t world : worlds) {
      std::deque<Trainer> last = start(world, 2, tensors);
      for (Trainer& trainer : last) {
        trainer.listen(Clock::now() + kRanksTimeLimit, "done");
        EXPECT_TRUE(trainer.last("done")) << "the last start on " << world << " ranks did not come to its end";
      }
      meet(last);
    }
    fmt::print("{} kills of one of {} ranks, {} tensors, disk '{}', seed {}: {} steps, lost {}\n", kills,
               fmt::join(worlds, ", "), tensors, disk, harness_seed(), reported_, lost_);
    report_tally(what, kills, lost_ + (HasFailure() && lost_ == 0 ? 1 : 0));
  }

  const TempDir directory_;
  std::mt19937_64 random_{harness_seed()};
  std::uint64_t reported_ = 0;
  std::uint64_t lost_ = 0;
};

TEST_F(RanksKillTest, AllRanksGoOnTogetherFromTheLastStepThatAnyWasToldOf) {
  kill_over_and_over({4}, "local", "kills of ranks, tensors of their own");
}

TEST_F(RanksKillTest, AnotherNumberOfRanksGoesOnFromTheLastStepThatAnyWasToldOf) {
  kill_over_and_over({4, 2, 3}, "global", "kills of ranks, another number each start");
}

TEST_F(RanksKillTest, ReadsThatFailOnceLoseNothing) {
  kill_over_and_over({4, 2}, "global", "kills of ranks, each read fails once", "flaky");
}

TEST_F(RanksKillTest, HostsWithCachesOfTheirOwnLoseNothing) {
  kill_over_and_over({4, 3}, "global", "kills of ranks, caches of each host (NFS)", "nfs");
}

TEST_F(RanksKillTest, ASlowRankLosesNothing) {
  kill_over_and_over({3}, "local", "kills of ranks, one of them slow", "slow");
}

}  // namespace
}  // namespace slackwater::test
