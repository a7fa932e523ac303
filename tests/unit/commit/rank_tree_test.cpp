#include "commit/rank_tree.hpp"

#include <set>

#include <gtest/gtest.h>

namespace slackwater {
namespace {

using Ranks = std::vector<std::uint32_t>;

TEST(RankTree, GroupsOfGroupsReportUpToRankZero) {
  const RankTree leader(0, 11, 3);
  EXPECT_EQ(leader.levels(), 3u);
  EXPECT_EQ(leader.height(), 3u);
  EXPECT_EQ(leader.heard_on(1), (Ranks{1, 2}));
  EXPECT_EQ(leader.heard_on(2), (Ranks{3, 6}));
  EXPECT_EQ(leader.heard_on(3), (Ranks{9}));
  EXPECT_EQ(leader.speaks_for(), 11u);
  const RankTree nine(9, 11, 3);
  EXPECT_EQ(nine.height(), 2u);
  EXPECT_EQ(nine.heard_on(1), (Ranks{10}));
  EXPECT_EQ(nine.heard_on(2), Ranks{});
  EXPECT_EQ(nine.speaks_for(), 2u);
  EXPECT_EQ(RankTree(10, 11, 3).height(), 0u);
  EXPECT_EQ(RankTree(0, 1, 64).levels(), 0u);
  EXPECT_EQ(RankTree(0, 64, 64).levels(), 1u);
  EXPECT_EQ(RankTree(0, 65, 64).levels(), 2u);
}

// However many ranks: each but rank 0 is heard by exactly one other, which looks into the box where it speaks, and those
// a rank speaks for follow it without a gap.
TEST(RankTree, EachRankIsHeardOnce) {
  for (const auto& [world, fan_in] : std::vector<std::pair<std::uint32_t, std::uint32_t>>{
           {1, 2}, {2, 2}, {7, 2}, {8, 2}, {9, 2}, {27, 3}, {28, 3}, {65, 64}, {5000, 8}, {65'536, 65'536}}) {
    SCOPED_TRACE(std::to_string(world) + " ranks, fan_in " + std::to_string(fan_in));
    std::set<std::uint32_t> heard;
    for (std::uint32_t rank = 0; rank < world; ++rank) {
      const RankTree tree(rank, world, fan_in);
      std::uint32_t next = rank + 1;
      for (unsigned level = 1; level <= tree.height(); ++level) {
        const Ranks others = tree.heard_on(level);
        ASSERT_LT(others.size(), fan_in);
        for (const std::uint32_t other : others) {
          const RankTree below(other, world, fan_in);
          ASSERT_TRUE(heard.insert(other).second) << other << " is heard twice";
          ASSERT_EQ(below.height() + 1, level);
          ASSERT_EQ(below.box("votes", level), tree.box("votes", level));
          ASSERT_EQ(other, next);
          next += below.speaks_for();
        }
      }
      ASSERT_EQ(next, rank + tree.speaks_for());
    }
    EXPECT_EQ(heard.size(), world - 1);
  }
}

TEST(RankTree, RankZeroHearsAsManyAsTheLogarithmAllows) {
  for (const std::uint32_t world : {64u, 512u, 16'384u, 65'536u}) {
    const RankTree leader(0, world, 64);
    std::size_t heard = 0;
    for (unsigned level = 1; level <= leader.height(); ++level) heard += leader.heard_on(level).size();
    EXPECT_LE(heard, 63u * leader.levels());
    EXPECT_LE(leader.levels(), 3u);
  }
}

}  // namespace
}  // namespace slackwater
