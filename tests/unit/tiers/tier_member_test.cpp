// What a rank other than rank 0 holds on its tier 0 while rank 0 has not begun to copy it.
#include "tiers/tier_member.hpp"

#include <filesystem>
#include <fstream>
#include <memory>
#include <set>

#include <gtest/gtest.h>

#include "support/temp_dir.hpp"
#include "version/manifest.hpp"

namespace slackwater::test {
namespace {

namespace stdfs = std::filesystem;

// Attempt 2 went back to step 50, so 60.a1 and 70.a1 on the lower tier are not live. Rank 0 has not deleted them yet.
class TierMemberTest : public ::testing::Test {
 protected:
  using Versions = std::vector<VersionName>;

  TierMemberTest() {
    for (const std::string& root : {upper_, lower_}) stdfs::create_directories(control_path(root));
    for (const std::uint64_t step : {50u, 60u, 70u}) publish({step, 1});
  }
  void publish(const VersionName& version) {
    stdfs::create_directories(version_path(lower_, version));
    std::ofstream(version_path(lower_, version) + "/" + kManifestName) << "{}";
  }
  // The versions that are still held after one look at the tier, whose file of the attempt lists these.
  std::set<VersionName> held(const Versions& adopted, const Versions& adopted_below, const Versions& committed) {
    Attempt attempt{.number = 2, .run = "run", .members = {"a"}, .adopted = adopted};
    backlog_.begin_attempt(attempt, 50);
    for (const VersionName& version : committed) backlog_.add(version);
    for (const VersionName& version : backlog_.waiting()) stdfs::create_directories(version_path(upper_, version));
    EXPECT_TRUE(member_.begin_attempt(attempt, 50));
    attempt.adopted = adopted_below;
    std::ofstream(control_path(lower_) + "/" + attempt_file(2)) << serialize(attempt);
    const auto outcome = member_.advance({});
    EXPECT_TRUE(outcome) << outcome.error().to_string();
    return backlog_.held();
  }

  TempDir temp_;
  const std::string upper_ = temp_ / "upper";
  const std::string lower_ = temp_ / "lower";
  const std::unique_ptr<FileSystem> fs_ = make_posix_file_system();
  const SystemClock clock_;
  const Log log_{[](LogLevel, std::string_view) {}};
  const Tier tier_{{.location = lower_, .keep = 2}, lower_, make_posix_file_system()};
  CopyBacklog backlog_{tier_.options(), lower_, log_, [] {}};
  BandwidthCap cap_{0};
  const Guarded<std::vector<DeleteNote>> heard_;
  TierMember member_{{.tier = tier_,
                      .local = *fs_,
                      .local_root = upper_,
                      .clock = clock_,
                      .log = log_,
                      .backlog = backlog_,
                      .cap = cap_,
                      .rank = 1,
                      .world = 2,
                      .deletes_heard = heard_}};
};

TEST_F(TierMemberTest, WhatARollbackLeftBehindDoesNotPushAVersionOut) {
  EXPECT_EQ(held({{50, 1}}, {{50, 1}}, {{51, 2}}), (std::set<VersionName>{{51, 2}}));
}

TEST_F(TierMemberTest, NewerVersionsOfThisRunPushItOut) {
  publish({80, 2});
  publish({90, 2});
  EXPECT_TRUE(held({{50, 1}}, {{50, 1}}, {{51, 2}}).empty());
}

TEST_F(TierMemberTest, WhatOnlyTheTierAdoptedCountsToo) {
  publish({45, 1});
  EXPECT_TRUE(held({{40, 1}, {50, 1}}, {{40, 1}, {45, 1}, {50, 1}}, {}).empty()) << "rank 0 will never copy step 40";
}

}  // namespace
}  // namespace slackwater::test
