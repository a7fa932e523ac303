#include "restore/extent_map.hpp"

#include <vector>

#include <gtest/gtest.h>

#include "base/digest.hpp"

namespace slackwater {
namespace {

constexpr std::uint64_t kMiB = 1u << 20;

std::vector<std::uint32_t> items(std::span<const FileExtent> extents) {
  std::vector<std::uint32_t> result;
  for (const FileExtent& extent : extents) result.push_back(extent.item);
  return result;
}

TEST(ExtentMap, FindsWhatOverlapsARangeOfOneFileAndNothingElse) {
  const ExtentMap map({{1, 10, 0, 100}, {0, 0, 4096, 100}, {0, 1, 4196, 50}, {0, 2, 4246, 1000}});
  EXPECT_EQ(items(map.overlapping(0, 4196, 50)), (std::vector<std::uint32_t>{1}));
  EXPECT_EQ(items(map.overlapping(0, 4195, 52)), (std::vector<std::uint32_t>{0, 1, 2}));
  EXPECT_EQ(items(map.overlapping(0, 0, 4096)), (std::vector<std::uint32_t>{}));
  EXPECT_EQ(items(map.overlapping(1, 0, 1)), (std::vector<std::uint32_t>{10}));
  EXPECT_EQ(items(map.overlapping(2, 0, kMiB)), (std::vector<std::uint32_t>{}));
}

TEST(ExtentMap, KeepsEveryOneOfSeveralEqualExtentsAndDropsEmptyOnes) {
  const ExtentMap map({{0, 5, 100, 10}, {0, 3, 100, 10}, {0, 9, 100, 0}});
  EXPECT_EQ(items(map.overlapping(0, 0, kMiB)), (std::vector<std::uint32_t>{3, 5}));
}

TEST(ExtentMap, PlansOnlyTheBlocksThatHoldWantedBytes) {
  const std::vector<ReadFile> files{{"a", 10 * kMiB + 5, {}}};
  const ExtentMap map({{0, 0, 10, 20}, {0, 1, 4 * kMiB - 1, 2}, {0, 2, 10 * kMiB, 5}});
  const std::vector<ReadUnit> units = map.plan_units(files, 4 * kMiB);
  ASSERT_EQ(units.size(), 3u);
  EXPECT_EQ(units[0].offset, 0u);
  EXPECT_EQ(units[0].size_bytes, kMiB);
  EXPECT_EQ(units[1].offset, 3 * kMiB);
  EXPECT_EQ(units[1].size_bytes, 2 * kMiB);
  EXPECT_EQ(units[2].offset, 10 * kMiB);
  EXPECT_EQ(units[2].size_bytes, 5u) << "the last block ends with the file";
}

TEST(ExtentMap, MergesNeighboursIntoUnitsOfTheGivenSizeAndReadsNoBlockTwice) {
  const std::vector<ReadFile> files{{"a", 7 * kMiB, {}}, {"b", kMiB, {}}};
  std::vector<FileExtent> extents;
  for (std::uint32_t i = 0; i < 7 * 16; ++i) extents.push_back({0, i, i * (kMiB / 16), kMiB / 16});
  extents.push_back({1, 1000, 0, kMiB});
  const std::vector<ReadUnit> units = ExtentMap(extents).plan_units(files, 2 * kMiB);
  ASSERT_EQ(units.size(), 5u);
  std::uint64_t expected = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(units[i].offset, expected);
    expected += units[i].size_bytes;
    EXPECT_LE(units[i].size_bytes, 2 * kMiB);
  }
  EXPECT_EQ(expected, 7 * kMiB);
  EXPECT_EQ(units[4].file, 1u);
}

TEST(ExtentMap, CutsAHugeExtentIntoUnits) {
  const std::vector<ReadFile> files{{"a", 100 * kMiB, {}}};
  const std::vector<ReadUnit> units = ExtentMap({{0, 0, 5, 100 * kMiB - 5}}).plan_units(files, 8 * kMiB);
  EXPECT_EQ(units.size(), 13u);
  EXPECT_EQ(units.back().offset + units.back().size_bytes, 100 * kMiB);
}

}  // namespace
}  // namespace slackwater
