#include <filesystem>
#include <fstream>
#include <thread>

#include <gtest/gtest.h>

#include "commit/ballot.hpp"
#include "commit/directory_coordinator.hpp"
#include "commit/index.hpp"
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

TEST_F(CoordinatorTest, WhoSpokeLastAboutWhichStepIsKnown) {
  auto leader = make(), member = make();
  gather(*leader, *member, "run");
  using Steps = std::map<std::uint32_t, std::uint64_t>;
  EXPECT_EQ(leader->latest({"votes-g0000", 7, 1}, {0, 1}), Steps());
  for (const std::uint64_t step : {9, 10}) ASSERT_TRUE(member->publish({"votes-g0000", 7, step}, 1, Json::object()));
  ASSERT_TRUE(member->publish({"votes-g0000", 6, 99}, 1, Json::object()));
  EXPECT_EQ(leader->latest({"votes-g0000", 7, 1}, {0, 1}), (Steps{{1, 10}}));
  EXPECT_EQ(leader->latest({"votes-g0000", 7, 1}, {0}), Steps());
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
  std::jthread other([&] {  // and told so: it need not wait until its time is up
    const auto refused = member->gather({1, 3, "b"}, within(600'000));
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().kind, ErrorKind::kMismatch) << refused.error().to_string();
  });
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

TEST(BallotTest, ComesBackAsItWasAndMergesByRank) {
  const std::string part =
      serialize_index({{local_name(4, "w"), DType::kU8, {2}, {}, {{{0}, {2}, data_file(4, 0), 4096, 2}}}});
  const Ballot four{.records = {{4, record_file(4), digest128(part)}},
                    .index_parts = {part},
                    .size_bytes = 10,
                    .tensor_count = 1,
                    .failures = {}};
  auto back = parse_ballot(to_json(four), "test");
  ASSERT_TRUE(back) << back.error().to_string();
  Ballot all{
      .records = {{9, record_file(9), {}}}, .size_bytes = 5, .tensor_count = 2, .failures = {{9, "late"}, {8, "late"}}};
  merge(all, std::move(*back));
  ASSERT_EQ(all.records.size(), 2u);
  EXPECT_EQ(all.records[0].rank, 4u);
  EXPECT_EQ(all.records[0].digest, four.records[0].digest);
  EXPECT_EQ(all.size_bytes, 15u);
  EXPECT_EQ(all.tensor_count, 3u);
  EXPECT_EQ(describe(all.failures), "ranks 8, 9: late");
  const auto index = merge_index(all);
  ASSERT_TRUE(index);
  EXPECT_EQ(parse_index(*index, "index")->at(0).name, "rank-00004/w");
}

TEST(BallotTest, TwoRanksThatClaimOneNameMakeNoIndex) {
  const std::string part = serialize_index({{"w", DType::kU8, {2}, {}, {{{0}, {2}, data_file(0, 0), 4096, 2}}}});
  const Ballot twice{.index_parts = {part, part}};
  EXPECT_FALSE(merge_index(twice));
}

}  // namespace
}  // namespace slackwater::test
