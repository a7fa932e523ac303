#include "tiers/tier_identity.hpp"

#include <cerrno>
#include <filesystem>
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "support/fault_file_system.hpp"
#include "support/file_bytes.hpp"
#include "support/temp_dir.hpp"
#include "version/catalog.hpp"

namespace slackwater::test {
namespace {

namespace stdfs = std::filesystem;

class TierIdentityTest : public ::testing::Test {
 protected:
  TierIdentityTest() {
    for (const TierPlace& place : {upper_, lower_}) stdfs::create_directories(control_path(place.root));
  }
  [[nodiscard]] std::string id_file() const { return control_path(lower_.root) + "/" + kTierIdFile; }
  [[nodiscard]] std::string known_file() const {
    return control_path(upper_.root) + "/" + known_tier_file(lower_.root);
  }
  [[nodiscard]] bool is_another() { return remembers_another(upper_, lower_).value().has_value(); }
  void empty_lower() {
    stdfs::remove_all(lower_.root);
    stdfs::create_directories(control_path(lower_.root));
  }

  TempDir temp_;
  const std::unique_ptr<FileSystem> real_ = make_posix_file_system();
  FaultFileSystem fs_{*real_};
  const TierPlace upper_{&fs_, temp_ / "upper"};
  const TierPlace lower_{&fs_, temp_ / "lower"};
};

TEST_F(TierIdentityTest, ANewTierIsRememberedAndKnownAgain) {
  EXPECT_FALSE(is_another());
  ASSERT_TRUE(remember_tier(upper_, lower_));
  EXPECT_FALSE(is_another());
  const std::string id = read_file_text(id_file());
  ASSERT_TRUE(remember_tier(upper_, lower_)) << "at every claim";
  EXPECT_EQ(read_file_text(id_file()), id);
}

TEST_F(TierIdentityTest, AnEmptyPlaceIsAnotherUntilTier0Forgets) {
  ASSERT_TRUE(remember_tier(upper_, lower_));
  empty_lower();
  EXPECT_EQ(remembers_another(upper_, lower_).value(), known_file());
  stdfs::remove(known_file());
  EXPECT_FALSE(is_another());
  ASSERT_TRUE(remember_tier(upper_, lower_));
  EXPECT_FALSE(is_another());
}

TEST_F(TierIdentityTest, ATierWithTheIdOfAnotherIsAnother) {
  ASSERT_TRUE(remember_tier(upper_, lower_));
  empty_lower();
  const TierPlace other{&fs_, temp_ / "other"};
  stdfs::create_directories(control_path(other.root));
  ASSERT_TRUE(remember_tier(other, lower_));
  EXPECT_TRUE(is_another());
}

// A tier 0 that is new, or was lost, goes on with the tier as it is.
TEST_F(TierIdentityTest, ANewTier0LearnsTheIdThatTheTierHas) {
  ASSERT_TRUE(remember_tier(upper_, lower_));
  const TierPlace other{&fs_, temp_ / "other"};
  stdfs::create_directories(control_path(other.root));
  EXPECT_FALSE(remembers_another(other, lower_).value());
  ASSERT_TRUE(remember_tier(other, lower_));
  EXPECT_FALSE(remembers_another(other, lower_).value());
  EXPECT_FALSE(is_another());
}

TEST_F(TierIdentityTest, DamageDoesNotMakeItAnother) {
  ASSERT_TRUE(remember_tier(upper_, lower_));
  const std::string id = read_file_text(id_file());
  for (const std::string& file : {id_file(), known_file()}) {
    stdfs::resize_file(file, 10);
    EXPECT_FALSE(is_another()) << file;
    ASSERT_TRUE(remember_tier(upper_, lower_));
    EXPECT_EQ(read_file_text(id_file()), id);
    EXPECT_FALSE(is_another());
  }
  empty_lower();
  EXPECT_TRUE(is_another()) << "both were mended";
}

TEST_F(TierIdentityTest, WhatCannotBeReadIsNeitherTheSameNorAnother) {
  ASSERT_TRUE(remember_tier(upper_, lower_));
  for (const std::string& file : {id_file(), known_file()}) {
    fs_.fail(FsCall::kOpen, EIO, {.times = kAlways, .path = file});
    EXPECT_FALSE(remembers_another(upper_, lower_)) << file;
    EXPECT_FALSE(remember_tier(upper_, lower_)) << file;
    fs_.clear_faults();
  }
}

}  // namespace
}  // namespace slackwater::test
