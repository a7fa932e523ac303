#include "tensor/box.hpp"

#include <algorithm>
#include <random>

#include <gtest/gtest.h>

namespace slackwater {
namespace {

using Shape = std::vector<std::int64_t>;

std::optional<TilingFault> check(const Shape& global, const std::vector<Box>& boxes) {
  std::vector<BoxView> views;
  for (const Box& box : boxes) views.push_back(box.view());
  return check_tiling(global, views);
}

// Cuts every dimension into the given number of about equal parts.
std::vector<Box> grid(const Shape& global, const Shape& parts) {
  std::vector<Box> boxes{{}};
  for (std::size_t d = 0; d < global.size(); ++d) {
    std::vector<Box> finer;
    for (const Box& box : boxes) {
      for (std::int64_t i = 0; i < parts[d]; ++i) {
        Box cut = box;
        const std::int64_t begin = global[d] * i / parts[d];
        cut.offset.push_back(begin);
        cut.shape.push_back(global[d] * (i + 1) / parts[d] - begin);
        finer.push_back(std::move(cut));
      }
    }
    boxes = std::move(finer);
  }
  return boxes;
}

TEST(Box, FitsOnlyInsideAndWithTheSameDimensions) {
  const Shape global{4, 6};
  EXPECT_TRUE(fits({Shape{0, 0}, Shape{4, 6}}, global));
  EXPECT_TRUE(fits({Shape{4, 0}, Shape{0, 6}}, global));
  EXPECT_FALSE(fits({Shape{1, 0}, Shape{4, 6}}, global));
  EXPECT_FALSE(fits({Shape{-1, 0}, Shape{1, 1}}, global));
  EXPECT_FALSE(fits({Shape{0, 0}, Shape{-1, 1}}, global));
  EXPECT_FALSE(fits({Shape{0}, Shape{4}}, global));
  EXPECT_FALSE(fits({Shape{0}, Shape{4, 6}}, global));
  EXPECT_FALSE(fits({Shape{INT64_MAX, 0}, Shape{1, 1}}, global));
  EXPECT_TRUE(fits({Shape{}, Shape{}}, Shape{}));
}

TEST(Box, VolumeNoticesOverflow) {
  EXPECT_EQ(volume(Shape{}), 1);
  EXPECT_EQ(volume(Shape{3, 0, 5}), 0);
  EXPECT_EQ(volume(Shape{1 << 30, 1 << 30}), std::int64_t{1} << 60);
  EXPECT_EQ(volume(Shape{1 << 30, 1 << 30, 8}), std::nullopt);
  EXPECT_EQ(volume(Shape{2, -1}), std::nullopt);
}

TEST(Box, IntersectionIsWhatBothHold) {
  const Box a{{0, 2}, {4, 4}}, b{{3, 0}, {9, 3}}, c{{4, 0}, {1, 9}};
  EXPECT_EQ(intersect(a.view(), b.view()), (Box{{3, 2}, {1, 1}}));
  EXPECT_EQ(intersect(a.view(), c.view()), std::nullopt);
  EXPECT_EQ(to_string(a.view()), "[0:4,2:6]");
  EXPECT_EQ(to_string(Box{}.view()), "[]");
}

TEST(CheckTiling, RowsColumnsGridsAndScalarsAreWhole) {
  EXPECT_FALSE(check({}, {{{}, {}}}));
  EXPECT_FALSE(check({7, 5}, grid({7, 5}, {7, 1})));
  EXPECT_FALSE(check({7, 5}, grid({7, 5}, {1, 5})));
  EXPECT_FALSE(check({7, 5, 3}, grid({7, 5, 3}, {3, 2, 3})));
  EXPECT_FALSE(check({2, 5}, grid({2, 5}, {4, 1})));  // more parts than rows: some have none
  EXPECT_FALSE(check({0, 5}, {}));
  // Four boxes around one in the middle. No straight cut separates them.
  EXPECT_FALSE(
      check({3, 3}, {{{0, 0}, {1, 2}}, {{0, 2}, {2, 1}}, {{2, 1}, {1, 2}}, {{1, 0}, {2, 1}}, {{1, 1}, {1, 1}}}));
}

TEST(CheckTiling, AHoleIsNamedWithWhatIsMissing) {
  auto boxes = grid({8, 4}, {4, 2});
  boxes.erase(boxes.begin() + 5);  // rows 4 to 5, columns 2 to 3
  auto fault = check({8, 4}, boxes);
  ASSERT_TRUE(fault);
  EXPECT_FALSE(fault->both);
  EXPECT_EQ(fault->missing, 4u);
  EXPECT_EQ(fault->region, (Box{{4, 2}, {2, 2}}));
  fault = check({}, {});
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->missing, 1u);
  fault = check({10}, {{{0}, {4}}});
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->region, (Box{{4}, {6}}));
}

TEST(CheckTiling, AnOverlapNamesBothBoxesEvenIfTheSumIsRight) {
  // The boxes have as many elements as the tensor, but one row is there twice and one is missing.
  const auto fault = check({4, 2}, {{{1, 0}, {1, 2}}, {{1, 0}, {2, 2}}, {{0, 0}, {1, 2}}});
  ASSERT_TRUE(fault);
  ASSERT_TRUE(fault->both);
  EXPECT_EQ(fault->both->first + fault->both->second, 1u);  // the first two
  EXPECT_EQ(fault->region, (Box{{1, 0}, {1, 2}}));
  EXPECT_EQ(fault->missing, 0u);
  EXPECT_TRUE(check({4}, {{{0}, {4}}, {{0}, {4}}})->both);
  EXPECT_TRUE(check({}, {{{}, {}}, {{}, {}}})->both);
}

// Compares random boxes with a count of every element.
TEST(CheckTiling, AgreesWithCountingTheElements) {
  std::mt19937 random(7);
  const auto below = [&](std::int64_t end) { return static_cast<std::int64_t>(random() % static_cast<unsigned>(end)); };
  int whole = 0;
  for (int round = 0; round < 3000; ++round) {
    const Shape global{1 + below(4), 1 + below(4)};
    std::vector<Box> boxes = grid(global, {1 + below(3), 1 + below(3)});
    std::ranges::shuffle(boxes, random);
    for (std::int64_t change = below(3); change > 0 && !boxes.empty(); --change) {
      Box& box = boxes[static_cast<std::size_t>(below(static_cast<std::int64_t>(boxes.size())))];
      for (std::size_t d = 0; d < 2; ++d) {
        box.offset[d] = below(global[d]);
        box.shape[d] = below(global[d] - box.offset[d] + 1);
      }
    }
    std::vector<int> count(static_cast<std::size_t>(global[0] * global[1]));
    for (const Box& box : boxes) {
      for (std::int64_t i = 0; i < box.shape[0]; ++i) {
        for (std::int64_t k = 0; k < box.shape[1]; ++k)
          ++count[static_cast<std::size_t>((box.offset[0] + i) * global[1] + box.offset[1] + k)];
      }
    }
    const bool tiles = std::ranges::all_of(count, [](int n) { return n == 1; });
    whole += tiles;
    const auto fault = check(global, boxes);
    ASSERT_EQ(!fault, tiles) << "round " << round;
    if (!fault) continue;
    const auto at = static_cast<std::size_t>(fault->region.offset[0] * global[1] + fault->region.offset[1]);
    EXPECT_EQ(fault->both.has_value(), count[at] > 1);
    EXPECT_EQ(!fault->both, count[at] == 0);
  }
  EXPECT_GT(whole, 300);
}

// A quadratic search would take minutes here; the test has a time limit of its own.
TEST(CheckTiling, ManyBoxesInAnyArrangementAreQuick) {
  std::mt19937 random(3);
  for (const auto& [global, parts] : std::vector<std::pair<Shape, Shape>>{{{1 << 20, 64}, {1 << 16, 1}},
                                                                          {{64, 1 << 20}, {1, 1 << 16}},
                                                                          {{4096, 4096}, {256, 256}},
                                                                          {{640, 640, 640}, {40, 40, 40}}}) {
    std::vector<Box> boxes = grid(global, parts);
    std::ranges::shuffle(boxes, random);
    EXPECT_FALSE(check(global, boxes));
    boxes.pop_back();
    EXPECT_TRUE(check(global, boxes));
  }
  // Rows and columns: every box overlaps half of the others.
  std::vector<Box> crossed = grid({1 << 14, 1 << 14}, {1 << 14, 1});
  std::ranges::move(grid({1 << 14, 1 << 14}, {1, 1 << 14}), std::back_inserter(crossed));
  EXPECT_TRUE(check({1 << 14, 1 << 14}, crossed)->both);
}

}  // namespace
}  // namespace slackwater
