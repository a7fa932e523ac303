#include "ranks/rank_tree.hpp"

#include <set>

#include <gtest/gtest.h>

namespace slackwater {
namespace {

using Ranks = std::vector<std::uint32_t>;

TEST(RankTree, GroupsOfGroupsReportUpToRankZero) {
  const RankTree leader(0, 11, 3);
  EXPECT_EQ(leader.levels(), 3u);
  EXPECT_EQ(leader.height(), 3u);
  EXPECT_EQ(leader.children(1), (Ranks{1, 2}));
  EXPECT_EQ(leader.children(2), (Ranks{3, 6}));
  EXPECT_EQ(leader.children(3), (Ranks{9}));
  EXPECT_EQ(leader.subtree_size(), 11u);
  const RankTree nine(9, 11, 3);
  EXPECT_EQ(nine.height(), 2u);
  EXPECT_EQ(nine.children(1), (Ranks{10}));
  EXPECT_EQ(nine.children(2), Ranks{});
  EXPECT_EQ(nine.subtree_size(), 2u);
  EXPECT_EQ(RankTree(10, 11, 3).height(), 0u);
  EXPECT_EQ(RankTree(0, 1, 64).levels(), 0u);
  EXPECT_EQ(RankTree(0, 64, 64).levels(), 1u);
  EXPECT_EQ(RankTree(0, 65, 64).levels(), 2u);
}

// However many ranks there are: each one but rank 0 has exactly one parent, which reads the channel that it sends on.
// The ranks that a rank leads have consecutive numbers.
TEST(RankTree, EachRankReportsToExactlyOneOther) {
  for (const auto& [world, fan_in] : std::vector<std::pair<std::uint32_t, std::uint32_t>>{
           {1, 2}, {2, 2}, {7, 2}, {8, 2}, {9, 2}, {27, 3}, {28, 3}, {65, 64}, {5000, 8}, {65'536, 65'536}}) {
    SCOPED_TRACE(std::to_string(world) + " ranks, fan_in " + std::to_string(fan_in));
    std::set<std::uint32_t> heard;
    for (std::uint32_t rank = 0; rank < world; ++rank) {
      const RankTree tree(rank, world, fan_in);
      std::uint32_t next = rank + 1;
      for (unsigned level = 1; level <= tree.height(); ++level) {
        const Ranks others = tree.children(level);
        ASSERT_LT(others.size(), fan_in);
        for (const std::uint32_t other : others) {
          const RankTree below(other, world, fan_in);
          ASSERT_TRUE(heard.insert(other).second) << other << " is heard twice";
          ASSERT_EQ(below.height() + 1, level);
          ASSERT_EQ(below.channel("votes", level), tree.channel("votes", level));
          ASSERT_EQ(other, next);
          next += below.subtree_size();
        }
      }
      ASSERT_EQ(next, rank + tree.subtree_size());
    }
    EXPECT_EQ(heard.size(), world - 1);
  }
}

TEST(RankTree, RankZeroReceivesAsManyMessagesAsTheLogarithmAllows) {
  for (const std::uint32_t world : {64u, 512u, 16'384u, 65'536u}) {
    const RankTree leader(0, world, 64);
    std::size_t heard = 0;
    for (unsigned level = 1; level <= leader.height(); ++level) heard += leader.children(level).size();
    EXPECT_LE(heard, 63u * leader.levels());
    EXPECT_LE(leader.levels(), 3u);
  }
}

TEST(RankTree, HigherLevelsWaitALittleLonger) {
  using std::chrono::milliseconds;
  const RankTree tree(0, 1000, 10);
  ASSERT_EQ(tree.levels(), 3u);
  EXPECT_EQ(tree.timeout_on(1, milliseconds(800)), milliseconds(800));
  EXPECT_EQ(tree.timeout_on(2, milliseconds(800)), milliseconds(900));
  EXPECT_EQ(tree.timeout_on(3, milliseconds(800)), milliseconds(1000));
  EXPECT_EQ(RankTree(0, 4, 4).timeout_on(1, milliseconds(800)), milliseconds(800)) << "there is one level only";
}

}  // namespace
}  // namespace slackwater
