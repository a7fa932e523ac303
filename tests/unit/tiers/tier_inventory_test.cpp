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
  void attempt(std::uint32_t number, Versions adopted) {
    std::ofstream(control_path(tier_0_) + "/" + attempt_file(number))
        << serialize(Attempt{.number = number, .run = random_id(), .members = {random_id()}, .adopted = adopted});
  }
  Adoption adopt(std::uint32_t own, std::optional<std::uint64_t> continued) {
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
  EXPECT_EQ(adopt(0, 50).adopted, (Versions{{40, 5}, {50, 5}}));
}

TEST_F(TierInventoryTest, ARollbackThatTheTierMissedHoldsThereToo) {
  attempt(5, {});
  attempt(6, {{30, 5}, {40, 5}});  // continued from step 40 while the tier was out of reach
  attempt(7, {{40, 5}, {70, 6}});
  EXPECT_EQ(adopt(7, 70).adopted, (Versions{{40, 5}}));
}

TEST_F(TierInventoryTest, IfTheAttemptsInBetweenAreUnknownVersionsAreSetAside) {
  attempt(5, {});
  attempt(7, {{40, 5}});  // 6 is missing
  const Adoption adoption = adopt(8, 70);
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
  const Adoption adoption = adopt_from(inventory, *fs_, tier_0_, 0, 50);
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

TEST_F(TierInventoryTest, NothingIsListedTwice) {
  Versions adopted{{40, 5}};
  std::vector<SetAside> aside{{{60, 5}, "damaged"}};
  add_adopted(adopted, aside, {.adopted = {{40, 5}, {50, 5}, {60, 5}}, .set_aside = {{{50, 5}, "unknown"}}});
  EXPECT_EQ(adopted, (Versions{{40, 5}, {50, 5}})) << "what was set aside stays aside";
  EXPECT_EQ(aside.size(), 1u);
}

}  // namespace
}  // namespace slackwater::test
