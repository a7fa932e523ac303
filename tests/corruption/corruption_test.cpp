// Random damage to committed versions: named or harmless, never a wrong byte.
#include <sys/resource.h>

#include <cstdio>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "corruption/corruption_harness.hpp"
#include "support/effort.hpp"
#include "support/tally.hpp"

namespace slackwater::test {
namespace {

std::string row(std::string_view name, const Tally& tally) {
  return fmt::format("{:<24} | {:>6} | {:>8} | {:>8} | {:>5}\n", name, tally.tried, tally.detected, tally.harmless,
                     tally.lost);
}

std::uint64_t peak_memory_bytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;
}

TEST(CorruptionTest, EveryDamageIsNamedOrHarmless) {
  CorruptionHarness harness(harness_seed(), false);
  const std::uint64_t trials = effort("SLACKWATER_CORRUPTIONS", 300);
  std::array<Tally, kDamageNames.size()> by_kind;
  std::array<Tally, kTargetNames.size()> by_target;
  Tally all;
  for (std::uint64_t i = 0; i < trials; ++i) {
    const Trial trial = harness.run();
    all.add(trial.verdict);
    by_kind[static_cast<std::size_t>(trial.kind)].add(trial.verdict);
    for (const DamagedFile target : trial.targets) by_target[static_cast<std::size_t>(target)].add(trial.verdict);
    if (trial.verdict == Verdict::kLost && all.lost <= 10)
      ADD_FAILURE() << "trial " << i << ", " << trial.what << ": " << trial.finding;
  }
  std::string table = fmt::format("\nCorruption, seed {}\n{:<24} | {:>6} | {:>8} | {:>8} | {:>5}\n", harness_seed(),
                                  "kind", "tried", "detected", "harmless", "lost");
  for (std::size_t i = 0; i < by_kind.size(); ++i) table += row(kDamageNames[i], by_kind[i]);
  for (std::size_t i = 0; i < by_target.size(); ++i) table += row(fmt::format("in {}", kTargetNames[i]), by_target[i]);
  std::fputs((table + row("all", all)).c_str(), stdout);
  std::fflush(stdout);
  report_tally("corruptions", all.tried, all.lost);
  EXPECT_EQ(all.tried, trials);
  EXPECT_EQ(all.lost, 0u);
  if (!kSanitized) {
    EXPECT_LT(peak_memory_bytes(), 512u << 20) << "damaged lengths must not decide about memory";
  }
}

// The harness itself: damage that fits its checksums is what a reader that skips them would see.
TEST(CorruptionTest, TheHarnessSeesWrongBytesWhereChecksumsDoNotTell) {
  CorruptionHarness harness(harness_seed(), true);
  Tally all;
  std::string first;
  for (std::uint64_t i = 0; i < effort("SLACKWATER_FORGED", 40); ++i) {
    const Trial trial = harness.run();
    all.add(trial.verdict);
    if (first.empty() && trial.finding.find("WRONG BYTES") != std::string::npos) first = trial.finding;
  }
  EXPECT_FALSE(first.empty()) << "damage under forged checksums went unnoticed";
  fmt::print("\nwith the checksum skipped: {} of {} lost; {}\n", all.lost, all.tried, first);
}

}  // namespace
}  // namespace slackwater::test
