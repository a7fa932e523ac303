#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "device/device.hpp"

namespace slackwater {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Memory that reaches to the largest address of `memory`, filled with a different byte at each place.
std::vector<std::byte> backing_for(StridedMemory& memory) {
  std::int64_t last = 0;
  for (std::size_t d = 0; d < memory.shape.size(); ++d) {
    const std::int64_t stride = memory.strides.empty() ? 0 : memory.strides[d];
    last += (memory.shape[d] - 1) * stride;
  }
  std::vector<std::byte> backing(
      std::max<std::uint64_t>(static_cast<std::uint64_t>(last + 1) * memory.item_bytes, memory.size_bytes()));
  std::mt19937_64 random(backing.size());
  std::ranges::generate(backing, [&] { return static_cast<std::byte>(random()); });
  memory.data = backing.data();
  return backing;
}

// The obvious way: element by element.
std::vector<std::byte> pack_naively(const StridedMemory& memory) {
  std::vector<std::byte> packed(memory.size_bytes());
  for (std::uint64_t e = 0; e < packed.size() / memory.item_bytes; ++e) {
    std::int64_t at = 0;
    std::uint64_t rest = e;
    for (std::size_t d = memory.shape.size(); d-- > 0;) {
      at += static_cast<std::int64_t>(rest % static_cast<std::uint64_t>(memory.shape[d])) * memory.strides[d];
      rest /= static_cast<std::uint64_t>(memory.shape[d]);
    }
    std::memcpy(packed.data() + e * memory.item_bytes, memory.data + at * memory.item_bytes, memory.item_bytes);
  }
  return packed;
}

struct Form {
  const char* name;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;
};

const std::vector<Form>& forms() {
  static const std::vector<Form> all = {
      {"every other element", {50}, {2}},
      {"rows of a wider matrix", {7, 9}, {20, 1}},
      {"transposed", {70, 90}, {1, 70}},
      {"transposed, wider", {70, 65}, {1, 77}},
      {"batch of transposed", {3, 5, 7}, {35, 1, 5}},
      {"permuted", {4, 3, 5, 2}, {2, 40, 8, 1}},
      {"expanded rows", {6, 8}, {0, 1}},
      {"expanded columns", {6, 8}, {1, 0}},
      {"expanded from one element", {5, 4}, {0, 0}},
      {"with dimensions of one", {1, 6, 1, 5}, {99, 10, 7, 2}},
  };
  return all;
}

class EveryItemSize : public ::testing::TestWithParam<std::uint32_t> {
 protected:
  std::unique_ptr<Device> device_ = make_host_device();
};

TEST_P(EveryItemSize, AnyByteRangeIsPackedAsElementByElement) {
  std::mt19937_64 random(GetParam());
  for (const Form& form : forms()) {
    StridedMemory memory{nullptr, GetParam(), form.shape, form.strides};
    const auto backing = backing_for(memory);
    const auto expected = pack_naively(memory);
    for (const StridedMemory& tensor : {memory, simplify(memory)}) {
      for (int round = 0; round < 40; ++round) {
        const std::uint64_t begin = round == 0 ? 0 : random() % expected.size();
        const std::uint64_t size = round == 0 ? expected.size() : random() % (expected.size() - begin + 1);
        std::vector<std::byte> packed(size + 1, std::byte{0xee});
        const CopyPiece piece{&tensor, begin, size, packed.data()};
        ASSERT_TRUE(device_->copy_to_host({&piece, 1}));
        ASSERT_TRUE(std::equal(packed.begin(), packed.end() - 1, expected.begin() + static_cast<std::ptrdiff_t>(begin)))
            << form.name << " begin " << begin << " size " << size;
        ASSERT_EQ(packed.back(), std::byte{0xee}) << form.name << ": wrote past the range";
      }
    }
  }
}

TEST_P(EveryItemSize, UnpackingInPiecesRestoresTheTensorAndNothingElse) {
  std::mt19937_64 random(GetParam());
  for (const Form& form : forms()) {
    StridedMemory source{nullptr, GetParam(), form.shape, form.strides};
    const auto backing = backing_for(source);
    auto packed = pack_naively(source);

    std::vector<std::byte> target(backing.size(), std::byte{0xcc});
    StridedMemory memory = source;
    memory.data = target.data();
    const StridedMemory tensor = simplify(memory);
    for (std::uint64_t begin = 0; begin < packed.size();) {
      const std::uint64_t size = std::min<std::uint64_t>(1 + random() % 100, packed.size() - begin);
      const CopyPiece piece{&tensor, begin, size, packed.data() + begin};
      ASSERT_TRUE(device_->copy_from_host({&piece, 1}));
      begin += size;
    }
    EXPECT_EQ(pack_naively(memory), packed) << form.name;

    // Bytes outside of the elements must be unchanged: clear the elements and compare.
    std::ranges::fill(packed, std::byte{0xcc});
    const CopyPiece piece{&tensor, 0, packed.size(), packed.data()};
    ASSERT_TRUE(device_->copy_from_host({&piece, 1}));
    EXPECT_TRUE(std::ranges::all_of(target, [](std::byte byte) { return byte == std::byte{0xcc}; })) << form.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Items, EveryItemSize, ::testing::Values(1u, 2u, 3u, 4u, 8u, 12u, 16u));

TEST(HostDevice, ContiguousRangesAreCopiedBothWays) {
  std::vector<std::uint32_t> values(1000);
  std::ranges::generate(values, [n = 0u]() mutable { return n++; });
  const StridedMemory tensor{reinterpret_cast<std::byte*>(values.data()), 4, {1000}, {}};
  std::vector<std::uint32_t> middle(100);
  const CopyPiece piece{&tensor, 400, 400, reinterpret_cast<std::byte*>(middle.data())};
  const auto device = make_host_device();
  ASSERT_TRUE(device->copy_to_host({&piece, 1}));
  EXPECT_EQ(middle.front(), 100u);
  EXPECT_EQ(middle.back(), 199u);
  middle.assign(100, 7);
  ASSERT_TRUE(device->copy_from_host({&piece, 1}));
  EXPECT_EQ(values[99], 99u);
  EXPECT_EQ(values[100], 7u);
  EXPECT_EQ(values[199], 7u);
  EXPECT_EQ(values[200], 200u);
}

TEST(Simplify, RowMajorStridesAreContiguous) {
  const auto simple = simplify({nullptr, 4, {2, 3, 4}, {12, 4, 1}});
  EXPECT_TRUE(simple.contiguous());
  EXPECT_EQ(simple.size_bytes(), 96u);
}

TEST(Simplify, StridesOfDimensionsOfOneDoNotMatter) {
  EXPECT_TRUE(simplify({nullptr, 4, {1, 3, 1, 4}, {77, 4, 0, 1}}).contiguous());
  EXPECT_TRUE(simplify({nullptr, 4, {1, 1}, {5, 5}}).contiguous());
  EXPECT_TRUE(simplify({nullptr, 4, {}, {}}).contiguous());
}

TEST(Simplify, NeighboursThatFollowEachOtherAreMerged) {
  const auto simple = simplify({nullptr, 2, {5, 3, 4}, {24, 4, 1}});
  EXPECT_THAT(simple.shape, ElementsAre(5, 12));
  EXPECT_THAT(simple.strides, ElementsAre(24, 1));
}

TEST(Simplify, ATransposedMatrixStaysStrided) {
  const auto simple = simplify({nullptr, 4, {3, 4}, {1, 3}});
  EXPECT_THAT(simple.shape, ElementsAre(3, 4));
  EXPECT_THAT(simple.strides, ElementsAre(1, 3));
}

TEST(Simplify, AnExpandedDimensionStaysStrided) { EXPECT_FALSE(simplify({nullptr, 4, {3}, {0}}).contiguous()); }

TEST(Simplify, EmptyTensorsAreContiguousAndHoldNothing) {
  const auto simple = simplify({nullptr, 4, {3, 0, 2}, {1, 7, 9}});
  EXPECT_THAT(simple.strides, IsEmpty());
  EXPECT_EQ(simple.size_bytes(), 0u);
}

}  // namespace
}  // namespace slackwater
