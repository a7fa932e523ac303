#include "device/dims.hpp"

#include <cstdint>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

namespace slackwater {
namespace {

std::vector<std::int64_t> counted(std::size_t count) {
  std::vector<std::int64_t> values(count);
  std::iota(values.begin(), values.end(), 1);
  return values;
}

std::vector<std::int64_t> listed(const Dims& dims) { return {dims.begin(), dims.end()}; }

TEST(Dims, HoldAnyNumberOfValues) {
  for (std::size_t count = 0; count < 70; ++count) {
    const Dims dims(counted(count));
    EXPECT_EQ(dims.size(), count);
    EXPECT_EQ(dims.empty(), count == 0);
    EXPECT_EQ(listed(dims), counted(count));
    if (count > 0) EXPECT_EQ(dims.back(), static_cast<std::int64_t>(count));
  }
}

TEST(Dims, ACopyIsIndependentOfWhatItWasMadeFrom) {
  for (const std::size_t count : {1u, 4u, 5u, 9u}) {
    Dims original(counted(count));
    Dims copy = original;
    copy[0] = -1;
    EXPECT_EQ(original[0], 1) << count;
    for (const std::size_t other : {0u, 3u, 4u, 5u, 20u}) {
      Dims assigned(counted(other));
      assigned = original;
      EXPECT_EQ(assigned, original) << other << " before";
      original[0] = 7;
      EXPECT_EQ(assigned[0], 1) << other << " before";
      original[0] = 1;
    }
  }
}

TEST(Dims, GrowAndShrink) {
  Dims dims;
  for (std::int64_t value = 1; value <= 12; ++value) dims.push_back(value);
  EXPECT_EQ(listed(dims), counted(12));
  dims.pop_back();
  EXPECT_EQ(listed(dims), counted(11));
  dims.resize(2);
  dims.resize(4);
  EXPECT_EQ(listed(dims), (std::vector<std::int64_t>{1, 2, 0, 0}));
  dims.assign(6, 3);
  EXPECT_EQ(listed(dims), std::vector<std::int64_t>(6, 3));
  dims.clear();
  EXPECT_TRUE(dims.empty());
}

}  // namespace
}  // namespace slackwater
