// Four ranks, one of them killed at a random moment, the rest ended as a launcher does, all restarted: every rank goes
// on from the same step, none goes back behind a step that any of them was told is committed, and none reads a wrong
// byte.
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <random>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "kill/trainer_process.hpp"
#include "support/effort.hpp"
#include "support/temp_dir.hpp"

namespace slackwater::test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint32_t kWorld = 4;
constexpr std::chrono::minutes kPatience{2};

void start(std::deque<Trainer>& trainers, const std::string& run, std::uint64_t steps) {
  for (std::uint32_t rank = 0; rank < kWorld; ++rank) trainers.emplace_back(run, 2, steps, "committed", rank, kWorld);
}

// All ranks that say where they go on say the same, and not before `floor`. Raises it to what was reported since.
void meet(const std::deque<Trainer>& trainers, std::uint64_t& floor) {
  std::optional<std::uint64_t> first;
  for (const Trainer& trainer : trainers) {
    const auto restored = trainer.last("restored");
    if (!restored) continue;
    EXPECT_GE(*restored, floor) << "a committed step was lost";
    EXPECT_EQ(*restored, first.value_or(*restored)) << "ranks went on from different steps";
    first = restored;
  }
  for (const Trainer& trainer : trainers) floor = std::max(floor, trainer.last("committed").value_or(0));
}

TEST(RanksKillTest, AllRanksGoOnTogetherFromTheLastStepThatAnyWasToldOf) {
  const TempDir directory;
  const std::string run = directory / "run";
  const std::uint64_t kills = effort("SLACKWATER_RANK_KILLS", 20);
  const std::uint64_t horizon_us = kSanitized ? 2'000'000 : 300'000;
  std::mt19937_64 random(harness_seed());
  std::uint64_t floor = 0;
  for (std::uint64_t round = 0; round < kills; ++round) {
    std::deque<Trainer> trainers;
    start(trainers, run, 1'000'000);
    // Half of the kills fall into training, half anywhere after the start.
    if (round % 2 == 0) trainers[0].listen(Clock::now() + kPatience, "committed");
    const auto victim = static_cast<std::size_t>(random() % kWorld);
    trainers[victim].listen(Clock::now() + std::chrono::microseconds(random() % (horizon_us >> (round % 4))));
    EXPECT_EQ(trainers[victim].end(), 128 + SIGKILL) << "round " << round;
    for (std::size_t rank = 0; rank < kWorld; ++rank) {
      if (rank == victim) continue;
      EXPECT_EQ(trainers[rank].end(), 128 + SIGKILL) << "round " << round << ", rank " << rank;
    }
    meet(trainers, floor);
  }
  EXPECT_GE(floor, kills / 2) << "killed too early to show anything";

  std::deque<Trainer> last;
  start(last, run, 2);
  for (Trainer& trainer : last) {
    trainer.listen(Clock::now() + kPatience, "done");
    EXPECT_TRUE(trainer.last("done")) << "the last start did not come to its end";
  }
  meet(last, floor);
  fmt::print("{} kills of one of {} ranks, seed {}: {} steps, none lost\n", kills, kWorld, harness_seed(), floor);
}

}  // namespace
}  // namespace slackwater::test
