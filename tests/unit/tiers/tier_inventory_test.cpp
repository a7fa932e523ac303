#include "tiers/tier_inventory.hpp"

#include <filesystem>
#include <fstream>
#include <memory>

#include <gtest/gtest.h>

#include "support/temp_dir.hpp"

namespace slackwater::test {
namespace {

// Tier 0 has attempt files only: adopt_from() reads nothing else there.
class TierInventoryTest : public ::testing::Test {
 protected:
  using Versions = std::vector<VersionName>;

  TierInventoryTest() { std::filesystem::create_directories(control_path(tier_0_)); }
  void attempt(std::uint32_t number, Versions adopted, Versions left_behind = {}) {
    std::ofstream(control_path(tier_0_) + "/" + attempt_file(number)) << serialize(Attempt{.number = number,
                                                                                           .run = random_id(),
                                                                                           .members = {random_id()},
                                                                                           .adopted = adopted,
                                                                                           .left_behind = left_behind});
  }
  static Versions names(const std::vector<SetAside>& set_aside) {
    Versions names;
    for (const SetAside& aside : set_aside) names.push_back(aside.version);
    return names;
  }
  Adoption adopt(std::uint32_t own, const Continued& continued) {
    return adopt_from({.newest_attempt = 5, .attempt = {}, .adoptable = {{40, 5}, {50, 5}, {60, 5}}, .set_aside = {}},
                      *fs_, tier_0_, own, continued);
  }

  TempDir temp_;
  const std::string tier_0_ = temp_ / "run";
  const std::unique_ptr<FileSystem> fs_ = make_posix_file_system();
};

TEST_F(TierInventoryTest, ARunThatRestoredNothingAdoptsEverything) {
  attempt(5, {});
  EXPECT_EQ(adopt(0, {}).adopted, (Versions{{40, 5}, {50, 5}, {60, 5}}));
}

TEST_F(TierInventoryTest, ARollbackLeavesLaterVersionsBehind) {
  attempt(5, {});
  const Adoption adoption = adopt(0, {.step = 50, .left_behind = {{60, 5}}});
  EXPECT_EQ(adoption.adopted, (Versions{{40, 5}, {50, 5}}));
  EXPECT_TRUE(adoption.set_aside.empty());
}

// The restore could not reach the tier. Nobody asked to go back behind what is only there.
TEST_F(TierInventoryTest, LaterVersionsThatTheRestoreDidNotSeeAreSetAside) {
  attempt(5, {});
  const Adoption adoption = adopt(0, {.step = 40, .left_behind = {{50, 5}}});
  EXPECT_EQ(adoption.adopted, (Versions{{40, 5}}));
  EXPECT_EQ(names(adoption.set_aside), (Versions{{60, 5}}));
}

TEST_F(TierInventoryTest, ARollbackThatTheTierMissedHoldsThereToo) {
  attempt(5, {});
  attempt(6, {{30, 5}, {40, 5}}, {{50, 5}, {60, 5}});  // continued from step 40 while the tier was out of reach
  attempt(7, {{40, 5}, {70, 6}});
  const Adoption adoption = adopt(7, {.step = 70});
  EXPECT_EQ(adoption.adopted, (Versions{{40, 5}}));
  EXPECT_TRUE(adoption.set_aside.empty());
}

TEST_F(TierInventoryTest, WhatNoAttemptSinceThenHadSeenIsSetAside) {
  attempt(5, {});
  attempt(6, {{30, 5}, {40, 5}}, {{50, 5}});  // 50 was on tier 0 too
  attempt(7, {{40, 5}, {70, 6}});
  const Adoption adoption = adopt(7, {.step = 70});
  EXPECT_EQ(adoption.adopted, (Versions{{40, 5}}));
  EXPECT_EQ(names(adoption.set_aside), (Versions{{60, 5}}));
}

TEST_F(TierInventoryTest, IfTheAttemptsInBetweenAreUnknownVersionsAreSetAside) {
  attempt(5, {});
  attempt(7, {{40, 5}});  // 6 is missing
  const Adoption adoption = adopt(8, {.step = 70});
  EXPECT_TRUE(adoption.adopted.empty());
  EXPECT_EQ(adoption.set_aside.size(), 3u) << "kept, until somebody decides";
}

TEST_F(TierInventoryTest, WhatAnotherRunSavedIsSetAside) {
  attempt(4, {});
  attempt(5, {});
  const TierInventory inventory{.newest_attempt = 5,
                                .attempt = Attempt{.number = 5, .run = random_id(), .members = {random_id()}},
                                .adoptable = {{40, 5}, {60, 5}},
                                .set_aside = {}};
  const Adoption adoption = adopt_from(inventory, *fs_, tier_0_, 0, {.step = 50});
  EXPECT_TRUE(adoption.adopted.empty());
  EXPECT_EQ(adoption.set_aside.size(), 2u);
}

TEST_F(TierInventoryTest, ANewTier0GoesOnFromWhateverThereIs) {
  attempt(6, {});  // its own
  const TierInventory inventory{.newest_attempt = 5,
                                .attempt = Attempt{.number = 5, .run = random_id(), .members = {random_id()}},
                                .adoptable = {{40, 5}},
                                .set_aside = {}};
  EXPECT_EQ(adopt_from(inventory, *fs_, tier_0_, 6, {}).adopted, (Versions{{40, 5}}));
}

TEST_F(TierInventoryTest, ATierThatDoesNotExistIsEmpty) {
  const auto inventory = take_inventory(*fs_, temp_ / "none");
  ASSERT_TRUE(inventory);
  EXPECT_EQ(inventory->newest_attempt, 0u);
}

TEST_F(TierInventoryTest, TheSentenceForTheUserNamesTheStepsAndWhatCanBeDone) {
  EXPECT_EQ(sentences_on_kept({{{60, 5}, "why"}, {{50, 5}, "why"}}, "s3://b/run"),
            (std::vector<std::string>{"steps 50, 60 on s3://b/run are set aside and kept: restore(step=...) takes one "
                                      "of them, slackwater rm removes it (why)"}));
  EXPECT_TRUE(sentences_on_kept({}, "s3://b/run").empty());
}

// A restore could not reach tier 0, and went on from step 40 on a lower tier. Tier 0 has the attempts 5 and 6.
class UnseenTier0Test : public TierInventoryTest {
 protected:
  static CatalogEntry entry(VersionName name, VersionState state = VersionState::kLive, std::string run = "five") {
    CatalogEntry entry;
    entry.name = name;
    entry.state = state;
    entry.run = std::move(run);
    return entry;
  }
  void claim(std::uint32_t number, const std::string& run) {
    std::ofstream(control_path(tier_0_) + "/" + attempt_file(number))
        << serialize(Attempt{.number = number, .run = run, .members = {random_id()}});
  }
  UnseenTier0Test() {
    claim(5, "five");
    claim(6, "six");
    seen_.newest_attempt = Attempt{.number = 5, .run = "five"};
    seen_.entries = {entry({30, 5}), entry({40, 5})};
    there_.entries = {entry({20, 5}), entry({40, 5}), entry({50, 5})};
  }
  Adoption adopt_tier_0(const Continued& continued = {.step = 40}) {
    return adopt_from_tier_0(there_, *fs_, tier_0_, seen_, continued, adopted_);
  }

  Catalog seen_;
  Catalog there_;
  Versions adopted_{{30, 5}, {40, 5}};
};

TEST_F(UnseenTier0Test, EarlierVersionsStayLiveAndLaterOnesAreSetAside) {
  const Adoption adoption = adopt_tier_0();
  EXPECT_EQ(adoption.adopted, (Versions{{20, 5}}));
  EXPECT_EQ(names(adoption.set_aside), (Versions{{50, 5}}));
}

TEST_F(UnseenTier0Test, WhatWasSetAsideOrLeftBehindThereStaysSo) {
  there_.entries = {entry({20, 5}, VersionState::kSetAside), entry({25, 5}, VersionState::kReplaced)};
  const Adoption adoption = adopt_tier_0();
  EXPECT_TRUE(adoption.adopted.empty());
  EXPECT_EQ(names(adoption.set_aside), (Versions{{20, 5}}));
}

TEST_F(UnseenTier0Test, WhatTheUserWentBackBehindIsLeftBehindThereToo) {
  seen_.entries.push_back(entry({50, 5}));
  EXPECT_TRUE(adopt_tier_0({.step = 40, .left_behind = {{50, 5}}}).set_aside.empty());
}

TEST_F(UnseenTier0Test, VersionsOfALaterAttemptAreSetAside) {
  there_.entries = {entry({35, 6}, VersionState::kLive, "six")};
  const Adoption adoption = adopt_tier_0();
  EXPECT_TRUE(adoption.adopted.empty()) << "that attempt may have been a rollback";
  EXPECT_EQ(names(adoption.set_aside), (Versions{{35, 6}}));
}

TEST_F(UnseenTier0Test, WhatAnotherRunSavedThereIsSetAside) {
  seen_.newest_attempt->run = "another";
  const Adoption adoption = adopt_tier_0();
  EXPECT_TRUE(adoption.adopted.empty());
  EXPECT_EQ(names(adoption.set_aside), (Versions{{20, 5}, {50, 5}}));
}

TEST_F(UnseenTier0Test, ANameStandsForWhatIsOnTier0) {
  seen_.entries[1].run = "another";
  EXPECT_EQ(names(adopt_tier_0().set_aside), (Versions{{40, 5}, {50, 5}}));
  EXPECT_EQ(adopted_, (Versions{{30, 5}}));
}

TEST_F(TierInventoryTest, NothingIsListedTwice) {
  Versions adopted{{40, 5}};
  std::vector<SetAside> aside{{{60, 5}, "damaged"}};
  add_adopted(adopted, aside, {.adopted = {{40, 5}, {50, 5}, {60, 5}}, .set_aside = {{{50, 5}, "unknown"}}});
  EXPECT_EQ(adopted, (Versions{{40, 5}, {50, 5}})) << "what was set aside stays aside";
  EXPECT_EQ(aside.size(), 1u);
}

}  // namespace
}  // namespace slackwater::test
