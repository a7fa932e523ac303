#include "tensor/dtype.hpp"

#include <set>
#include <string>

#include <gtest/gtest.h>

namespace slackwater {
namespace {

constexpr int kDTypes = static_cast<int>(DType::kC128) + 1;

TEST(DType, EveryNameLeadsBackToItsType) {
  std::set<std::string_view> names;
  for (int i = 0; i < kDTypes; ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_TRUE(names.insert(dtype_name(dtype)).second) << dtype_name(dtype);
    const auto back = dtype_from_name(dtype_name(dtype));
    ASSERT_TRUE(back.has_value()) << dtype_name(dtype);
    EXPECT_EQ(*back, dtype);
  }
}

TEST(DType, NamesAreTheOnesOfTorch) {
  EXPECT_EQ(dtype_name(DType::kF8E4M3), "float8_e4m3fn");
  EXPECT_EQ(dtype_name(DType::kF8E8M0), "float8_e8m0fnu");
  EXPECT_EQ(dtype_name(DType::kBF16), "bfloat16");
  EXPECT_EQ(dtype_name(DType::kC32), "complex32");
  EXPECT_EQ(dtype_name(DType::kBool), "bool");
}

TEST(DType, UnknownNameIsRefusedByName) {
  const auto dtype = dtype_from_name("float4");
  ASSERT_FALSE(dtype.has_value());
  EXPECT_EQ(dtype.error().kind, ErrorKind::kUnsupported);
  EXPECT_NE(dtype.error().message.find("'float4'"), std::string::npos);
}

TEST(DType, WhateverIsStoredHasASafetensorsNameThatLeadsBack) {
  for (int i = 0; i < kDTypes; ++i) {
    const StoredDType stored = stored_dtype(static_cast<DType>(i));
    ASSERT_FALSE(safetensors_name(stored.dtype).empty()) << dtype_name(static_cast<DType>(i));
    EXPECT_EQ(dtype_from_safetensors(safetensors_name(stored.dtype)), stored.dtype);
    EXPECT_EQ(item_bytes(stored.dtype) * (stored.as_pair ? 2 : 1), item_bytes(static_cast<DType>(i)));
  }
}

TEST(DType, OnlyWhatSafetensorsLacksIsStoredAsPairs) {
  EXPECT_EQ(stored_dtype(DType::kC128).dtype, DType::kF64);
  EXPECT_TRUE(stored_dtype(DType::kC128).as_pair);
  EXPECT_EQ(stored_dtype(DType::kC32).dtype, DType::kF16);
  EXPECT_TRUE(stored_dtype(DType::kC32).as_pair);
  EXPECT_FALSE(stored_dtype(DType::kC64).as_pair);
  EXPECT_FALSE(stored_dtype(DType::kF8E5M2Fnuz).as_pair);
}

TEST(DType, ForeignSafetensorsNamesAreNone) {
  EXPECT_FALSE(dtype_from_safetensors("F4").has_value());
  EXPECT_FALSE(dtype_from_safetensors("").has_value());
  EXPECT_FALSE(dtype_from_safetensors("f32").has_value());
}

}  // namespace
}  // namespace slackwater
