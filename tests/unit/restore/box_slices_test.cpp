#include "restore/box_slices.hpp"

#include <array>
#include <random>

#include <gtest/gtest.h>

#include "device/strided_copy.hpp"
#include "restore/box_finder.hpp"
#include "restore/read_plan.hpp"
#include "support/global_tensor.hpp"

namespace slackwater {
namespace {

using Sizes = std::vector<std::int64_t>;

TEST(BoxSlices, KnowWhereEveryByteLies) {
  std::mt19937_64 random(8);
  BoxSlices slices;
  for (std::size_t round = 0; round < 300; ++round) {
    Sizes shape(random() % 5), begin, extent;
    for (std::int64_t& length : shape) {
      length = static_cast<std::int64_t>(1 + random() % 5);
      begin.push_back(static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(length)));
      extent.push_back(static_cast<std::int64_t>(1 + random() % static_cast<std::uint64_t>(length - begin.back())));
    }
    const std::uint32_t item = 1u << random() % 4;
    slices.add(shape, begin, extent, item);
    SCOPED_TRACE(fmt::format("part {}", to_string(BoxView{begin, extent})));

    // The box's bytes say where they are; those of the part are wanted.
    std::vector<std::uint64_t> wanted;
    test::for_each_row(extent, [&](const Sizes& index, std::int64_t length) {
      std::uint64_t at = 0;
      for (std::size_t d = 0; d < index.size(); ++d)
        at = at * static_cast<std::uint64_t>(shape[d]) + static_cast<std::uint64_t>(begin[d] + index[d]);
      const std::uint64_t row_bytes = static_cast<std::uint64_t>(length) * item;
      for (std::uint64_t byte = 0; byte < row_bytes; ++byte) wanted.push_back(at * item + byte);
    });
    std::uint64_t box_bytes = item;
    for (const std::int64_t length : shape) box_bytes *= static_cast<std::uint64_t>(length);

    ASSERT_EQ(slices.size_bytes(round), wanted.size());
    for (std::size_t packed = 0; packed < wanted.size(); ++packed)
      ASSERT_EQ(slices.place_of(round, packed), wanted[packed]);
    for (std::uint64_t at = 0; at <= box_bytes; ++at) {
      const auto before = std::ranges::lower_bound(wanted, at) - wanted.begin();
      ASSERT_EQ(slices.bytes_before(round, at), static_cast<std::uint64_t>(before)) << "byte " << at;
    }
    const std::uint64_t run = slices.run_bytes(round);
    for (std::size_t packed = 1; packed < wanted.size(); ++packed) {
      if (packed % run != 0) {
        ASSERT_EQ(wanted[packed], wanted[packed - 1] + 1);
      }
    }

    std::vector<std::byte> box(box_bytes), part(wanted.size());
    for (std::uint64_t at = 0; at < box_bytes; ++at) box[at] = static_cast<std::byte>(at * 31);
    pack(slices.view(round, reinterpret_cast<std::uintptr_t>(box.data())), 0, part.size(), part.data());
    for (std::size_t packed = 0; packed < wanted.size(); ++packed) ASSERT_EQ(part[packed], box[wanted[packed]]);
  }
}

TEST(BoxSlices, OfWholeRowsAreOneRun) {
  BoxSlices slices;
  slices.add(Sizes{10, 4, 8}, Sizes{3, 0, 0}, Sizes{5, 4, 8}, 4);
  slices.add(Sizes{10, 4, 8}, Sizes{3, 1, 0}, Sizes{5, 2, 8}, 4);
  EXPECT_EQ(slices.run_bytes(0), 5u * 4 * 8 * 4);
  EXPECT_EQ(slices.run_bytes(1), 2u * 8 * 4);
}

TEST(BoxFinder, FindsForEveryRegionWhatALinearSearchFinds) {
  std::mt19937_64 random(4);
  const Sizes shape{40, 3, 50};
  std::vector<StoredBox> stored;
  for (Box& box : test::random_tiling(shape, 200, random))
    stored.push_back({std::move(box.offset), std::move(box.shape)});
  const BoxFinder quick(stored, 1000), plain(stored, 1);
  const auto found_by = [&](const BoxFinder& finder, const Box& region) {
    std::vector<std::pair<Sizes, Sizes>> found;
    finder.find(region.view(),
                [&](const StoredBox&, const Box& common) { found.emplace_back(common.offset, common.shape); });
    std::ranges::sort(found);
    return found;
  };
  for (int round = 0; round < 200; ++round) {
    Box region{Sizes(3), Sizes(3)};
    for (std::size_t d = 0; d < 3; ++d) {
      region.offset[d] = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(shape[d]));
      region.shape[d] =
          static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(shape[d] - region.offset[d] + 1));
    }
    const auto found = found_by(quick, region);
    EXPECT_EQ(found, found_by(plain, region)) << to_string(region.view());
    EXPECT_EQ(found.empty(), *volume(region.shape) == 0);
  }
}

TEST(ReadPlan, NamesAHoleByItsPlaceInTheGlobalTensor) {
  TensorInfo tensor;
  tensor.name = "w";
  tensor.dtype = DType::kU8;
  tensor.shape = {6};
  tensor.size_bytes = 6;
  tensor.boxes = {{.offset = {0}, .shape = {4}, .file = 0, .file_offset = 0, .size_bytes = 4},
                  {.offset = {5}, .shape = {1}, .file = 0, .file_offset = 4, .size_bytes = 1}};
  std::array<std::byte, 3> memory{};
  Target target{.name = "w", .dtype = DType::kU8, .shape = {3}, .data = memory.data()};
  target.shard = Shard{.global_shape = {6}, .offset = {3}};
  const auto plan = ReadPlan::make({&tensor, 1}, {&target, 1});
  ASSERT_FALSE(plan);
  EXPECT_NE(plan.error().message.find("none of them holds [4:5]"), std::string::npos) << plan.error().message;
}

}  // namespace
}  // namespace slackwater
