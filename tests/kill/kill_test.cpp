// SIGKILL at random moments: the next start never goes back behind a step that was reported committed, and never reads
// a wrong byte.
#include <signal.h>

#include <chrono>
#include <cstdlib>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "kill/trainer_process.hpp"
#include "support/effort.hpp"
#include "support/small_mount.hpp"
#include "support/tally.hpp"
#include "support/temp_dir.hpp"

namespace slackwater::test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kWrongBytes = 3;  // exit code of the trainer
constexpr std::chrono::minutes kTimeLimit{2};

struct KillTally {
  std::uint64_t killed = 0;
  std::uint64_t while_restoring = 0;
  std::uint64_t committed = 0;  // steps reported
  std::uint64_t behind = 0;     // restarts that lost a reported step
  std::uint64_t wrong = 0;      // restarts that found wrong bytes
  std::uint64_t failed = 0;     // ended by themselves, with an error
  std::vector<std::string> findings;
};

struct KillPlan {
  std::uint64_t kills = 25;
  std::uint64_t size_mib = 16;
  const char* report_when = "committed";
  const char* disk = "";       // SLACKWATER_TRAINER_DISK
  std::string directory = {};  // empty: one of its own
};

// Starts and kills the trainer over and over, then lets it come to its end once.
KillTally kill_over_and_over(const KillPlan& plan) {
  const TempDir directory;
  const std::string run = plan.directory.empty() ? directory / "run" : plan.directory + "/run";
  ::setenv("SLACKWATER_TRAINER_DISK", plan.disk, 1);
  const std::uint64_t horizon_us = kSanitized ? 2'000'000 : 600'000;
  std::mt19937_64 random(harness_seed());
  KillTally tally;
  std::uint64_t floor = 0;
  const auto meet = [&](const Trainer& trainer, std::uint64_t round) {
    const auto restored = trainer.last("restored");
    if (restored && *restored < floor) {
      ++tally.behind;
      tally.findings.push_back(
          fmt::format("round {}: step {} was reported, step {} was restored", round, floor, *restored));
    }
    if (const auto committed = trainer.last("committed")) {
      tally.committed += *committed - *restored;
      floor = *committed;
    }
  };

  for (std::uint64_t round = 0; round < plan.kills; ++round) {
    Trainer trainer(run, plan.size_mib, 1'000'000, plan.report_when);
    // Half of the kills fall into training, half anywhere after the start; some soon, some late.
    if (round % 2 == 0) trainer.listen(Clock::now() + kTimeLimit, "committed");
    const auto moment = std::chrono::microseconds(random() % (horizon_us >> (round % 6)));
    trainer.listen(Clock::now() + moment);
    const int code = trainer.end();
    ++tally.killed;
    if (!trainer.last("restored")) ++tally.while_restoring;
    if (code != 128 + SIGKILL) {
      ++(code == kWrongBytes ? tally.wrong : tally.failed);
      tally.findings.push_back(fmt::format("round {}: the trainer ended with code {}", round, code));
    }
    meet(trainer, round);
  }
  Trainer last(run, plan.size_mib, 2, plan.report_when);
  last.listen(Clock::now() + kTimeLimit, "done");
  if (!last.last("done")) {
    const int code = last.end();
    ++(code == kWrongBytes ? tally.wrong : tally.failed);
    tally.findings.push_back(fmt::format("the last start did not come to its end: code {}", code));
  }
  meet(last, plan.kills);
  return tally;
}

void print(const KillPlan& plan, const KillTally& tally) {
  constexpr const char* kRow = "{:>6} | {:>15} | {:>15} | {:>9} | {:>11} | {:>6} | {:>4}\n";
  fmt::print("\nKills, seed {}, state {} MiB, steps reported when {}{}{}\n", harness_seed(), plan.size_mib,
             plan.report_when, *plan.disk == '\0' ? "" : ", disk: ", plan.disk);
  fmt::print(fmt::runtime(kRow), "tried", "while restoring", "steps reported", "gone back", "wrong bytes", "failed",
             "lost");
  fmt::print(fmt::runtime(kRow), tally.killed, tally.while_restoring, tally.committed, tally.behind, tally.wrong,
             tally.failed, tally.behind + tally.wrong);
}

void expect_nothing_lost(const KillPlan& plan, const char* what) {
  const KillTally tally = kill_over_and_over(plan);
  print(plan, tally);
  report_tally(what, tally.killed, tally.behind + tally.wrong + tally.failed);
  for (const std::string& finding : tally.findings) ADD_FAILURE() << finding;
  EXPECT_GE(tally.committed, plan.kills / 2) << "killed too early to show anything";
  EXPECT_EQ(tally.behind + tally.wrong + tally.failed, 0u);
}

TEST(KillTest, ARestartFindsEveryReportedStepBitForBit) {
  expect_nothing_lost({.kills = effort("SLACKWATER_KILLS", 25),
                       .size_mib = effort("SLACKWATER_KILL_MIB", kSanitized ? 80 : 16)},  // a tenth: 8
                      "kills");
}

// Every kill leaves debris, and there is room for no more than one state beyond those that are kept.
TEST(KillTest, ADiskOfKeepPlusOneStatesNeverFillsUpForGood) {
  const std::uint64_t size_mib = 8;
  const SmallMount disk("tmpfs", fmt::format("size={}k", (2 + 1) * size_mib * 1024 + 2048));
  if (!disk.mounted()) GTEST_SKIP() << "mounting is not permitted here";
  expect_nothing_lost(
      {.kills = effort("SLACKWATER_ODD_KILLS", 10), .size_mib = size_mib, .disk = "small", .directory = disk.path()},
      "kills, disk of keep + 1 states");
}

TEST(KillTest, ReadsThatFailOnceLoseNothing) {
  expect_nothing_lost({.kills = effort("SLACKWATER_ODD_KILLS", 6), .size_mib = 8, .disk = "flaky"},
                      "kills, each read fails once");
}

// The harness itself: a step that is reported before it is safe is missed after a kill.
TEST(KillTest, TheHarnessSeesAStepThatWasReportedTooEarly) {
  const KillPlan plan{.kills = 20, .size_mib = 16, .report_when = "captured"};
  const KillTally tally = kill_over_and_over(plan);
  print(plan, tally);
  EXPECT_GT(tally.behind, 0u);
  EXPECT_EQ(tally.wrong, 0u);
}

}  // namespace
}  // namespace slackwater::test
