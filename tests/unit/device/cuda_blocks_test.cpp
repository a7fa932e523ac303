#include <algorithm>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "device/cuda/blocks.hpp"
#include "device/strided_copy.hpp"

namespace slackwater::cuda {
namespace {

constexpr std::uint64_t kAnyPitch = std::numeric_limits<std::int32_t>::max();

struct Played {
  std::vector<std::byte> bytes;
  std::size_t blocks = 0;
  std::uint64_t widest_pitch = 0;
};

// Copies the blocks of a range in host memory.
Played play(const StridedMemory& memory, std::uint64_t begin, std::uint64_t size, std::uint64_t max_pitch) {
  Played played{std::vector<std::byte>(size)};
  const CopyPiece piece{&memory, begin, size, played.bytes.data()};
  EXPECT_TRUE(for_each_block(piece, max_pitch, [&](const Block& block) {
    ++played.blocks;
    EXPECT_TRUE(block.rows == 1 || (block.pitch >= block.width && block.packed_pitch >= block.width));
    played.widest_pitch = std::max(played.widest_pitch, block.pitch);
    for (std::uint64_t i = 0; i < block.rows; ++i) {
      const Block row = row_of(block, i);
      EXPECT_LE(row.packed + row.width, played.bytes.data() + size);
      std::memcpy(row.packed, row.strided, row.width);
    }
    return Status();
  }));
  return played;
}

class Blocks : public ::testing::Test {
 protected:
  StridedMemory memory(std::uint32_t item_bytes, std::vector<std::int64_t> shape, std::vector<std::int64_t> strides) {
    StridedMemory form{nullptr, item_bytes, std::move(shape), std::move(strides)};
    std::int64_t last = 0;
    for (std::size_t d = 0; d < form.strides.size(); ++d) last += (form.shape[d] - 1) * form.strides[d];
    backing_.resize(std::max(form.size_bytes(), static_cast<std::uint64_t>(last + 1) * item_bytes));
    std::ranges::generate(backing_, [&] { return static_cast<std::byte>(random_()); });
    form.data = backing_.data();
    return form;
  }

  std::mt19937_64 random_{42};
  std::vector<std::byte> backing_;
};

TEST_F(Blocks, EveryRangeOfAnyStridedTensorHasTheBytesOfItsPackedForm) {
  for (int round = 0; round < 300; ++round) {
    std::vector<std::int64_t> shape;
    std::vector<std::int64_t> strides;
    for (std::uint64_t dimensions = 1 + random_() % 4; dimensions > 0; --dimensions) {
      shape.push_back(static_cast<std::int64_t>(1 + random_() % 6));
      strides.push_back(static_cast<std::int64_t>(random_() % 2 == 0 ? random_() % 4 : random_() % 40));
    }
    const StridedMemory tensor = memory(1u << (random_() % 5), shape, strides);
    const std::uint64_t size = tensor.size_bytes();
    std::vector<std::byte> packed(size);
    pack(tensor, 0, size, packed.data());
    for (int range = 0; range < 10; ++range) {
      const std::uint64_t begin = random_() % size;
      const std::uint64_t length = random_() % (size - begin + 1);
      const std::uint64_t max_pitch = range % 2 == 0 ? kAnyPitch : 16;
      const Played played = play(tensor, begin, length, max_pitch);
      ASSERT_TRUE(std::equal(played.bytes.begin(), played.bytes.end(), packed.begin() + begin))
          << "round " << round << ", bytes from " << begin << ", " << length << " of them";
      ASSERT_LE(played.widest_pitch, max_pitch);
    }
  }
}

TEST_F(Blocks, RowsOfAWiderMatrixAreOne2dCopyAndItsRaggedEndsOneEach) {
  const StridedMemory tensor = memory(4, {100, 30}, {64, 1});
  EXPECT_EQ(play(tensor, 0, tensor.size_bytes(), kAnyPitch).blocks, 1u);
  EXPECT_EQ(play(tensor, 7, tensor.size_bytes() - 20, kAnyPitch).blocks, 3u);
  EXPECT_EQ(play(tensor, 7, 11, kAnyPitch).blocks, 1u);
}

TEST_F(Blocks, RowsFurtherApartThanTheLargestPitchComeOneByOne) {
  const StridedMemory tensor = memory(4, {10, 30}, {64, 1});
  EXPECT_EQ(play(tensor, 0, tensor.size_bytes(), 255).blocks, 10u);
  EXPECT_EQ(play(tensor, 0, tensor.size_bytes(), 256).blocks, 1u);
}

TEST_F(Blocks, WhatIsContiguousAfterAllIsOneRun) {
  const StridedMemory tensor = memory(2, {3, 1, 5}, {5, 77, 1});
  EXPECT_EQ(play(tensor, 3, 20, kAnyPitch).blocks, 1u);
}

TEST_F(Blocks, TheFirstErrorEndsTheWalk) {
  const StridedMemory tensor = memory(4, {10, 3}, {0, 1});
  int seen = 0;
  std::vector<std::byte> packed(tensor.size_bytes());
  const auto status =
      for_each_block({&tensor, 0, packed.size(), packed.data()}, kAnyPitch, [&](const Block&) -> Status {
        if (++seen == 3) return fail(ErrorKind::kDevice, "third");
        return {};
      });
  EXPECT_EQ(seen, 3);
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().message, "third");
}

}  // namespace
}  // namespace slackwater::cuda
