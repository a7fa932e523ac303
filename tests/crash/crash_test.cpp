// The power goes off behind every single operation; what had been reported committed must be there, and nothing else
// count.
#include <cstdio>

#include <gtest/gtest.h>

#include "crash/crash_rig.hpp"
#include "support/effort.hpp"
#include "support/tally.hpp"

namespace slackwater::test {
namespace {

TEST(CrashTest, NothingCommittedIsLostByAPowerCutBehindAnyOperation) {
  const CrashEffort effort{.stride = kSanitized ? 9u : 1u,
                           .samples = static_cast<std::size_t>(test::effort("SLACKWATER_CRASH_SAMPLES", 4))};
  std::vector<CrashTally> tallies;
  for (const NamedScenario& scenario : crash_scenarios()) {
    tallies.push_back(crash_everywhere(scenario, effort));
    for (const std::string& finding : tallies.back().findings) ADD_FAILURE() << scenario.name << ": " << finding;
  }
  const std::size_t restarts = test::effort("SLACKWATER_CRASH_RESTARTS", 1);
  tallies.push_back(crash_again(crash_scenarios(), restarts, {.stride = kSanitized ? 27u : 5u, .samples = 2}));
  for (const std::string& finding : tallies.back().findings) ADD_FAILURE() << "cut again: " << finding;
  std::fputs(("\nPower cuts, seed " + std::to_string(harness_seed()) + "\n" + table_of(tallies)).c_str(), stdout);
  std::fflush(stdout);
  for (const CrashTally& tally : tallies) {
    EXPECT_GT(tally.states, tally.cuts / 4) << tally.scenario << ": too few different states to mean anything";
    EXPECT_EQ(tally.lost, 0u) << tally.scenario;
    report_tally("power cuts: " + tally.scenario, tally.states, tally.lost);
  }
}

}  // namespace
}  // namespace slackwater::test
