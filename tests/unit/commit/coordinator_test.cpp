#include <filesystem>
#include <fstream>
#include <thread>

#include <gtest/gtest.h>

#include "commit/directory_coordinator.hpp"
#include "commit/names.hpp"
#include "support/temp_dir.hpp"

namespace slackwater::test {
namespace {

using std::chrono::milliseconds;

class CoordinatorTest : public ::testing::Test {
 protected:
  CoordinatorTest() { std::filesystem::create_directory(control()); }

  [[nodiscard]] std::string control() const { return temp_ / kControlDirectory; }
  [[nodiscard]] Patience within(int ms) const { return {clock_.now() + milliseconds(ms), {}}; }
  std::unique_ptr<DirectoryCoordinator> make() {
    return std::make_unique<DirectoryCoordinator>(*fs_, clock_, temp_.path());
  }
  // Rank 0 and rank 1 of a run of two, gathered.
  void gather(DirectoryCoordinator& leader, DirectoryCoordinator& member, const std::string& ids) {
    std::jthread other([&] {
      const auto members = member.gather({1, 2, ids + "-1"}, within(20'000));
      ASSERT_TRUE(members) << members.error().to_string();
      EXPECT_EQ(*members, (std::vector{ids + "-0", ids + "-1"}));
    });
    const auto members = leader.gather({0, 2, ids + "-0"}, within(20'000));
    ASSERT_TRUE(members) << members.error().to_string();
  }
  // What rank 1 hears of rank 0 about the topic.
  static Json heard(DirectoryCoordinator& coordinator, const Topic& topic, const Patience& patience) {
    Json said;
    const auto all = coordinator.await(topic, {0}, patience, [&](std::uint32_t, const Json& body) {
      said = body;
      return true;
    });
    EXPECT_TRUE(all) << all.error().to_string();
    return said;
  }

  TempDir temp_{TempDir::in_memory()};
  std::unique_ptr<FileSystem> fs_ = make_posix_file_system();
  SystemClock clock_;
};

TEST_F(CoordinatorTest, AMessageIsSaidOnceAndHeardWhole) {
  auto leader = make(), member = make();
  gather(*leader, *member, "run");
  const Topic topic{"outcomes", 7, 42};
  ASSERT_TRUE(leader->publish(topic, 0, {{"words", "all is well"}}));
  EXPECT_EQ(leader->publish(topic, 0, {{"words", "or not"}}).error().kind, ErrorKind::kAlreadyExists);
  EXPECT_EQ(heard(*member, topic, within(20'000))["words"], "all is well");
  EXPECT_TRUE(heard(*member, {"outcomes", 7, 43}, within(20)).is_null());
  leader->forget(topic, 0);
  EXPECT_TRUE(heard(*member, topic, within(20)).is_null());
}

TEST_F(CoordinatorTest, WhatWasSaidEarlierIsForgottenAndTheRestStays) {
  auto leader = make(), member = make();
  gather(*leader, *member, "run");
  for (const std::uint64_t step : {1, 2, 3}) ASSERT_TRUE(leader->publish({"outcomes", 7, step}, 0, {{"step", step}}));
  leader->forget_before({"outcomes", 7, 3});
  EXPECT_TRUE(heard(*member, {"outcomes", 7, 2}, within(20)).is_null());
  EXPECT_EQ(heard(*member, {"outcomes", 7, 3}, within(20'000))["step"], 3);
}

TEST_F(CoordinatorTest, ADamagedOrMisplacedMessageIsNotHeard) {
  auto leader = make(), member = make();
  gather(*leader, *member, "run");
  ASSERT_TRUE(leader->publish({"outcomes", 7, 1}, 0, {{"step", 1}}));
  const std::string box = control() + "/session-run-0/outcomes";
  std::filesystem::copy_file(box + "/7.1.0", box + "/7.2.0");
  std::ofstream(box + "/7.3.0") << "{\"body\":{}}";
  EXPECT_TRUE(heard(*member, {"outcomes", 7, 2}, within(20)).is_null());
  EXPECT_TRUE(heard(*member, {"outcomes", 7, 3}, within(20)).is_null());
}

TEST_F(CoordinatorTest, SessionsOfEarlierStartsAreRemovedAndTheirMembersAreTold) {
  auto leader = make(), zombie = make();
  gather(*leader, *zombie, "old");
  auto next_leader = make(), next_member = make();
  gather(*next_leader, *next_member, "new");
  EXPECT_FALSE(std::filesystem::exists(control() + "/session-old-0"));
  EXPECT_EQ(zombie->publish({"votes-g0000", 1, 1}, 1, Json::object()).error().kind, ErrorKind::kAborted);
  const auto waited =
      zombie->await({"outcomes", 1, 1}, {0}, within(20'000), [](std::uint32_t, const Json&) { return true; });
  EXPECT_EQ(waited.error().kind, ErrorKind::kAborted);
}

TEST_F(CoordinatorTest, RanksOfAnotherWorldAreRefused) {
  auto leader = make(), member = make();
  std::jthread other([&] { EXPECT_FALSE(member->gather({1, 3, "b"}, within(300))); });
  const auto gathered = leader->gather({0, 2, "a"}, within(20'000));
  ASSERT_FALSE(gathered);
  EXPECT_EQ(gathered.error().kind, ErrorKind::kMismatch);
}

TEST_F(CoordinatorTest, AWaitEndsWhenItIsToldTo) {
  auto leader = make(), member = make();
  gather(*leader, *member, "run");
  std::stop_source stop;
  std::jthread stopper([&] { stop.request_stop(); });
  const auto waited = member->await({"outcomes", 1, 1}, {0}, {clock_.now() + std::chrono::hours(1), stop.get_token()},
                                    [](std::uint32_t, const Json&) { return true; });
  EXPECT_EQ(waited.error().kind, ErrorKind::kClosed);
}

TEST(NameRanks, JoinsNeighboursAndCutsLongLists) {
  EXPECT_EQ(name_ranks({3}), "rank 3");
  EXPECT_EQ(name_ranks({5, 1, 4, 6, 9, 10}), "ranks 1, 4 to 6, 9, 10");
  std::vector<std::uint32_t> odd;
  for (std::uint32_t rank = 1; rank < 40; rank += 2) odd.push_back(rank);
  EXPECT_EQ(name_ranks(odd), "ranks 1, 3, 5, 7, 9, 11, 13, 15 and 12 more");
}

}  // namespace
}  // namespace slackwater::test
