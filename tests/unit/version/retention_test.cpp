#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "version/version_store.hpp"

namespace slackwater {
namespace {

std::vector<VersionInfo> steps(std::initializer_list<std::uint64_t> numbers) {
  std::vector<VersionInfo> versions;
  for (const std::uint64_t step : numbers) versions.push_back({.step = step, .attempt = 1});
  return versions;
}

std::vector<std::uint64_t> expired_steps(const std::vector<VersionInfo>& live, const RetentionPolicy& policy) {
  std::vector<std::uint64_t> numbers;
  for (const VersionName& name : expired(live, policy)) numbers.push_back(name.step);
  return numbers;
}

using Steps = std::vector<std::uint64_t>;

TEST(Retention, KeepsTheNewest) {
  EXPECT_EQ(expired_steps(steps({1, 2, 3, 4, 5}), {.keep = 2}), (Steps{1, 2, 3}));
  EXPECT_EQ(expired_steps(steps({1, 2}), {.keep = 2}), Steps{});
  EXPECT_EQ(expired_steps(steps({1}), {.keep = 5}), Steps{});
  EXPECT_EQ(expired_steps({}, {.keep = 1}), Steps{});
}

TEST(Retention, ZeroKeepsAll) { EXPECT_EQ(expired_steps(steps({1, 2, 3}), {.keep = 0, .keep_every = 2}), Steps{}); }

TEST(Retention, KeepEveryKeepsItsMultiplesToo) {
  EXPECT_EQ(expired_steps(steps({0, 5, 10, 12, 20, 25, 26}), {.keep = 1, .keep_every = 10}), (Steps{5, 12, 25}));
}

TEST(Retention, PinnedVersionsStay) {
  auto versions = steps({1, 2, 3, 4});
  versions[1].pinned = true;
  EXPECT_EQ(expired_steps(versions, {.keep = 1}), (Steps{1, 3}));
}

std::vector<VersionInfo> with_losses(const std::vector<double>& losses) {
  std::vector<VersionInfo> versions;
  for (const double loss : losses)
    versions.push_back({.step = versions.size() + 1, .attempt = 1, .metrics = {{"loss", loss}}});
  return versions;
}

TEST(Retention, TheBestStayBesidesTheNewest) {
  const auto versions = with_losses({0.5, 0.2, 0.9, 0.3, 0.7, 0.8});
  EXPECT_EQ(expired_steps(versions, {.keep = 1, .best = {.metric = "loss", .count = 2}}), (Steps{1, 3, 5}));
  EXPECT_EQ(expired_steps(versions, {.keep = 1, .best = {.metric = "loss", .count = 2, .highest = true}}),
            (Steps{1, 2, 4, 5}));
  EXPECT_EQ(expired_steps(versions, {.keep = 1, .best = {.metric = "loss", .count = 100}}), Steps{});
  EXPECT_EQ(expired_steps(versions, {.keep = 1, .best = {.metric = "accuracy", .count = 2}}), (Steps{1, 2, 3, 4, 5}));
}

// A newest one that is also among the best takes the place of one of these: it would be kept for that alone.
TEST(Retention, TheNewestMayBeAmongTheBest) {
  EXPECT_EQ(expired_steps(with_losses({0.3, 0.2, 0.4, 0.1}), {.keep = 1, .best = {.metric = "loss", .count = 2}}),
            (Steps{1, 3}));
}

TEST(Retention, OfEqualsTheNewerStays) {
  EXPECT_EQ(expired_steps(with_losses({0.2, 0.2, 0.2, 0.9}), {.keep = 1, .best = {.metric = "loss", .count = 1}}),
            (Steps{1, 2}));
}

TEST(Retention, AMetricThatIsNotANumberIsNeverTheBest) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(expired_steps(with_losses({nan, -infinity, infinity, 0.5, 0.9}),
                          {.keep = 1, .best = {.metric = "loss", .count = 3}}),
            (Steps{1, 2, 3}));
}

TEST(Retention, TheNewestIsNeverAmongThem) {
  for (std::uint64_t keep = 0; keep < 6; ++keep) {
    for (const std::uint64_t step : expired_steps(steps({3, 6, 9}), {.keep = keep, .keep_every = 4}))
      EXPECT_NE(step, 9u);
  }
}

CatalogEntry entry(const VersionName& name, VersionState state) {
  CatalogEntry made{.name = name, .state = state, .info = {.step = name.step, .attempt = name.attempt}};
  return made;
}

std::vector<VersionName> names_of(const std::vector<Removal>& removals) {
  std::vector<VersionName> names;
  for (const Removal& removal : removals) names.push_back(removal.version);
  return names;
}

using Names = std::vector<VersionName>;

TEST(Leftovers, OneRankSweepsWhatEarlierAttemptsLeftAndItsOwnAborts) {
  const Catalog catalog{.entries = {entry({1, 1}, VersionState::kUndecided), entry({2, 1}, VersionState::kAborted),
                                    entry({3, 2}, VersionState::kAborted), entry({4, 2}, VersionState::kUndecided),
                                    entry({5, 3}, VersionState::kUndecided), entry({6, 3}, VersionState::kAborted)}};
  EXPECT_EQ(names_of(leftovers(catalog, {.attempt = 2})), (Names{{1, 1}, {2, 1}, {3, 2}}));
}

// Ranks that are slower write on below the newest step; all have left the steps before the newest commit.
TEST(Leftovers, WithSeveralRanksOnlyStepsThatAllHavePassedGo) {
  const Catalog catalog{.entries = {entry({1, 2}, VersionState::kUndecided), entry({2, 2}, VersionState::kAborted),
                                    entry({3, 2}, VersionState::kLive), entry({4, 2}, VersionState::kUndecided),
                                    entry({5, 2}, VersionState::kAborted)}};
  EXPECT_EQ(names_of(leftovers(catalog, {.attempt = 2, .alone = false, .settled_below = 3})), (Names{{1, 2}, {2, 2}}));
  EXPECT_EQ(names_of(leftovers(catalog, {.attempt = 2, .alone = false})), Names{});
}

TEST(Leftovers, ACommitOfANewerRunStays) {
  const Catalog catalog{.entries = {entry({1, 1}, VersionState::kReplaced), entry({2, 3}, VersionState::kReplaced)}};
  EXPECT_EQ(names_of(leftovers(catalog, {.attempt = 2, .committed = true})), (Names{{1, 1}}));
  EXPECT_EQ(names_of(leftovers(catalog, {.attempt = 2})), Names{});
}

const Catalog& four_of_one_run() {
  static const Catalog catalog{.entries = {entry({1, 1}, VersionState::kLive), entry({2, 1}, VersionState::kLive),
                                           entry({3, 1}, VersionState::kLive), entry({4, 1}, VersionState::kLive)}};
  return catalog;
}

TEST(Removable, AVersionThatIsBeingDecidedOrInDoubtReplacesNone) {
  const auto removed = [](const RunState& run, Need need) {
    return names_of(removable(four_of_one_run(), run, {.keep = 2}, need));
  };
  EXPECT_EQ(removed({.attempt = 1}, Need::kRoutine), (Names{{1, 1}, {2, 1}}));
  EXPECT_EQ(removed({.attempt = 1, .deciding = VersionName{4, 1}}, Need::kRoutine), (Names{{1, 1}}));
  EXPECT_EQ(removed({.attempt = 1, .deciding = VersionName{4, 1}}, Need::kSpace), (Names{{1, 1}}));
  EXPECT_EQ(removed({.attempt = 1, .doubtful = {{4, 1}}}, Need::kRoutine), (Names{{1, 1}}));
  EXPECT_EQ(removed({.attempt = 1, .doubtful = {{4, 1}}}, Need::kSpace), (Names{{4, 1}, {1, 1}}));
}

TEST(Removable, BeforeTheFirstCommitNothingLiveGoesUnlessTheDiskIsFull) {
  const auto removed = [](Need need) {
    return names_of(removable(four_of_one_run(), {.attempt = 2}, {.keep = 2}, need));
  };
  EXPECT_EQ(removed(Need::kRoutine), Names{});
  EXPECT_EQ(removed(Need::kSpace), (Names{{1, 1}, {2, 1}}));
}

TEST(Removable, AVersionThatIsBeingDecidedIsNoDebris) {
  const Catalog catalog{.entries = {entry({1, 1}, VersionState::kUndecided), entry({2, 1}, VersionState::kUndecided),
                                    entry({3, 1}, VersionState::kLive)}};
  EXPECT_EQ(names_of(removable(catalog, {.attempt = 1, .alone = false, .deciding = VersionName{2, 1}}, {.keep = 1},
                               Need::kRoutine)),
            (Names{{1, 1}}));
}

Catalog live_catalog(std::initializer_list<std::uint64_t> numbers) {
  Catalog catalog;
  for (const VersionInfo& info : steps(numbers))
    catalog.entries.push_back(
        {.name = name_of(info), .state = VersionState::kLive, .current = true, .info = info, .error = {}});
  return catalog;
}

Steps removed_steps(const Catalog& catalog, const RunState& run, const RetentionPolicy& policy, Need need) {
  Steps numbers;
  for (const Removal& removal : removable(catalog, run, policy, need)) numbers.push_back(removal.version.step);
  return numbers;
}

TEST(Retention, AHeldVersionStaysAndTakesNoPlace) {
  RunState run{.attempt = 1};
  run.held = {{2, 1}};
  EXPECT_EQ(removed_steps(live_catalog({1, 2, 3, 4}), run, {.keep = 1}, Need::kRoutine), (Steps{1, 3}));
}

TEST(Retention, AFullDiskTakesAHeldVersionOnlyIfNothingElseCanGo) {
  RunState run{.attempt = 1};
  run.held = {{2, 1}, {4, 1}};
  EXPECT_EQ(removed_steps(live_catalog({1, 2, 3, 4}), run, {.keep = 1}, Need::kSpace), (Steps{1, 3}));
  EXPECT_EQ(removed_steps(live_catalog({2, 4}), run, {.keep = 1}, Need::kRoutine), Steps{});
  EXPECT_EQ(removed_steps(live_catalog({2, 4}), run, {.keep = 1}, Need::kSpace), Steps{2}) << "the newest stays";
}

TEST(Retention, OnALowerTierACopyThatWasGivenUpGoesAndOneOnItsWayStays) {
  Catalog catalog = live_catalog({5});
  for (const std::uint64_t step : {3, 4, 6})
    catalog.entries.push_back({.name = {step, 1}, .state = VersionState::kUndecided, .info = {}, .error = {}});
  RunState run{.attempt = 1, .own_copies = std::set<VersionName>{{3, 1}, {4, 1}, {6, 1}}};
  run.held = {{4, 1}, {6, 1}};
  EXPECT_EQ(removed_steps(catalog, run, {.keep = 2}, Need::kRoutine), Steps{3});
  EXPECT_EQ(removed_steps(catalog, run, {.keep = 2}, Need::kSpace), Steps{3});
  run.own_copies.reset();
  EXPECT_EQ(removed_steps(catalog, run, {.keep = 2}, Need::kRoutine), Steps{}) << "its writer may still be at it";
}

TEST(Retention, OnALowerTierACopyThatSomebodyElseBeganStays) {
  Catalog catalog = live_catalog({5});
  catalog.entries.push_back({.name = {3, 1}, .state = VersionState::kUndecided, .info = {}, .error = {}});
  catalog.entries.push_back({.name = {4, 2}, .state = VersionState::kUndecided, .info = {}, .error = {}});
  RunState run{.attempt = 2, .own_copies = std::set<VersionName>{}};
  EXPECT_EQ(removed_steps(catalog, run, {.keep = 2}, Need::kSpace), Steps{}) << "it may be on its way";
  run.own_copies = std::set<VersionName>{{3, 1}};
  EXPECT_EQ(removed_steps(catalog, run, {.keep = 2}, Need::kRoutine), Steps{3}) << "found when this run started";
}

}  // namespace
}  // namespace slackwater
