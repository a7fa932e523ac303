// SIGKILL at random moments while versions are copied to a lower tier: whatever is live there is complete, bit for bit.
// No reported step is lost on tier 0, and the next run leaves no debris on either tier.
#include <signal.h>

#include <chrono>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "kill/trainer_process.hpp"
#include "restore/checkpoint_reader.hpp"
#include "support/effort.hpp"
#include "support/tally.hpp"
#include "support/temp_dir.hpp"
#include "version/catalog.hpp"

namespace slackwater::test {
namespace {

constexpr std::chrono::minutes kTierTimeLimit{2};

// The steps that are live, each read to its last byte; what is wrong goes to `findings`.
std::vector<std::uint64_t> live_steps(const std::string& root, std::vector<std::string>& findings) {
  const auto fs = make_posix_file_system();
  const auto catalog = scan_catalog(*fs, root);
  std::vector<std::uint64_t> steps;
  if (!catalog && catalog.error().kind == ErrorKind::kNotFound) return steps;
  if (!catalog) {
    findings.push_back(catalog.error().to_string());
    return steps;
  }
  for (const VersionInfo& version : catalog->live_versions()) {
    const auto report = verify_version({.fs = fs.get()}, root, name_of(version), {});
    if (!report || !report->damages.empty())
      findings.push_back(fmt::format("step {} is live on {} and damaged: {}", version.step, root,
                                     report ? report->damages[0].what : report.error().to_string()));
    steps.push_back(version.step);
  }
  return steps;
}

std::string debris(const std::string& root) {
  const auto fs = make_posix_file_system();
  const auto catalog = scan_catalog(*fs, root);
  if (!catalog) return catalog.error().to_string();
  std::string text;
  for (const CatalogEntry& entry : catalog->entries)
    if (entry.state != VersionState::kLive) text += version_directory(entry.name) + " ";
  return text;
}

TEST(TierKillTest, WhatIsLiveOnTheLowerTierIsCompleteAndNothingIsLost) {
  const std::uint64_t kills = effort("SLACKWATER_TIER_KILLS", 5);
  const std::uint64_t size_mib = 8;
  const TempDir directory;
  const std::string run = directory / "run";
  const std::string lower = run + "-lower";
  ::setenv("SLACKWATER_TRAINER_DISK", "tier", 1);
  std::mt19937_64 random(harness_seed());
  std::vector<std::string> findings;
  std::uint64_t floor = 0;         // the newest step that was reported
  std::uint64_t newest_below = 0;  // on the lower tier
  for (std::uint64_t round = 0; round < kills; ++round) {
    Trainer trainer(run, size_mib, 1'000'000);
    if (round % 2 == 0) trainer.listen(Trainer::Clock::now() + kTierTimeLimit, "committed");
    trainer.listen(Trainer::Clock::now() + std::chrono::microseconds(random() % (600'000 >> (round % 4))));
    const int code = trainer.end();
    if (code != 128 + SIGKILL) findings.push_back(fmt::format("round {}: ended with code {}", round, code));
    const auto restored = trainer.last("restored");
    if (restored && *restored < floor)
      findings.push_back(fmt::format("round {}: step {} was reported, {} restored", round, floor, *restored));
    if (const auto committed = trainer.last("committed")) floor = *committed;
    const auto below = live_steps(lower, findings);
    const std::uint64_t newest = below.empty() ? 0 : below.back();
    if (newest < newest_below)
      findings.push_back(fmt::format("round {}: step {} was on the lower tier and is gone", round, newest_below));
    newest_below = std::max(newest_below, newest);
  }
  Trainer last(run, size_mib, 4);
  last.listen(Trainer::Clock::now() + kTierTimeLimit, "done");
  const auto done = last.last("done");
  if (!done) findings.push_back(fmt::format("the last start did not come to its end: code {}", last.end()));
  const auto below = live_steps(lower, findings);
  if (done) {
    // close() waits for the copies, so the newest due step is there.
    if (below.empty() || below.back() != *done / 2 * 2)
      findings.push_back(fmt::format("step {} is due and not on the lower tier", *done / 2 * 2));
    if (const std::string left = debris(run) + debris(lower); !left.empty())
      findings.push_back("debris after the next run: " + left);
  }
  report_tally("kills while copying to a lower tier", kills, findings.size());
  for (const std::string& finding : findings) ADD_FAILURE() << finding;
}

}  // namespace
}  // namespace slackwater::test
