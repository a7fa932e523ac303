#include "tensor/shape.hpp"

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

namespace slackwater {
namespace {

using Dims = std::vector<std::int64_t>;
constexpr std::int64_t kHuge = std::int64_t{1} << 62;

TEST(Shape, PackedBytesAreElementsTimesItem) {
  EXPECT_EQ(packed_bytes(DType::kF32, Dims{}), 4u);
  EXPECT_EQ(packed_bytes(DType::kC128, Dims{2, 3}), 96u);
  EXPECT_EQ(packed_bytes(DType::kF32, Dims{5, 0, 7}), 0u);
}

TEST(Shape, OverflowAndNegativeDimensionsHaveNoSize) {
  EXPECT_FALSE(packed_bytes(DType::kU8, Dims{kHuge, 2}).has_value());
  EXPECT_FALSE(packed_bytes(DType::kF64, Dims{kHuge}).has_value());
  EXPECT_FALSE(packed_bytes(DType::kU8, Dims{-1, 0}).has_value());
  // The stock library multiplies from the left and refuses this one, so we must not write it.
  EXPECT_FALSE(packed_bytes(DType::kU8, Dims{kHuge, 4, 0}).has_value());
  EXPECT_EQ(packed_bytes(DType::kU8, Dims{0, kHuge, 4}), 0u);
}

TEST(Shape, ContiguousMeansPackedRowMajor) {
  EXPECT_TRUE(is_contiguous(Dims{2, 3}, Dims{}));
  EXPECT_TRUE(is_contiguous(Dims{2, 3}, Dims{3, 1}));
  EXPECT_TRUE(is_contiguous(Dims{2, 1, 3}, Dims{3, 99, 1}));
  EXPECT_TRUE(is_contiguous(Dims{0, 3}, Dims{7, 7}));
  EXPECT_FALSE(is_contiguous(Dims{2, 3}, Dims{1, 2}));
  EXPECT_FALSE(is_contiguous(Dims{2, 3}, Dims{0, 1}));
  EXPECT_FALSE(is_contiguous(Dims{2, 3}, Dims{4, 1})) << "a gap between the rows";
  EXPECT_FALSE(is_contiguous(Dims{6}, Dims{2})) << "a gap between the elements";
  EXPECT_FALSE(is_contiguous(Dims{2, 3, 5}, Dims{15, 6, 1}));
}

TEST(Shape, StridesThatLeaveTheAddressSpaceDoNotFit) {
  EXPECT_TRUE(strides_fit(DType::kF32, Dims{4, 4}, Dims{4, 1}));
  EXPECT_TRUE(strides_fit(DType::kF32, Dims{4, 4}, Dims{-4, 1}));
  EXPECT_TRUE(strides_fit(DType::kF32, Dims{1}, Dims{INT64_MAX}));
  EXPECT_FALSE(strides_fit(DType::kF32, Dims{3}, Dims{kHuge}));
  EXPECT_FALSE(strides_fit(DType::kU8, Dims{2, 2}, Dims{kHuge, kHuge}));
  EXPECT_FALSE(strides_fit(DType::kU8, Dims{2}, Dims{INT64_MIN}));
}

}  // namespace
}  // namespace slackwater
