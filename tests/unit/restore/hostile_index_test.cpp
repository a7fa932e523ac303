// An index that its manifest vouches for and that says what cannot be: every lie is refused by name, and no byte moves.
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "restore/checkpoint_reader.hpp"
#include "support/global_tensor.hpp"
#include "support/temp_dir.hpp"
#include "support/write_ranks.hpp"

namespace slackwater {
namespace {

using test::GlobalTensor;
using test::must;
using test::OwnedTensor;
using test::RankStates;
using test::RanksWriter;

struct Lie {
  const char* name;
  std::function<void(std::vector<IndexEntry>&)> tell;
  const char* refusal;
  RankFiles files = {};
};

class HostileIndexTest : public testing::TestWithParam<Lie> {};

IndexEntry& entry(std::vector<IndexEntry>& entries, std::string_view name) {
  return *std::ranges::find(entries, name, &IndexEntry::name);
}

TEST_P(HostileIndexTest, IsRefusedByNameAndNoByteMoves) {
  const test::TempDir directory;
  const std::string root = directory / "run";
  const GlobalTensor tensor{OwnedTensor::random("w", DType::kU8, {4, 8})};
  RankStates ranks(2);
  ranks.add_box(0, tensor, {{0, 0}, {2, 8}});
  ranks.add_box(1, tensor, {{2, 0}, {2, 8}});
  for (std::uint32_t rank = 0; rank < 2; ++rank)
    ranks.add_local(rank, OwnedTensor::random("own", DType::kU8, {16}, rank));
  RanksWriter(root, 2, GetParam().files).write(1, ranks.states(), GetParam().tell);

  const std::unique_ptr<FileSystem> fs = make_posix_file_system();
  auto checkpoint = open_version({.fs = fs.get(), .viewer = Viewer{0, 2}}, root, must(list_versions(root)).back(), {});
  Status status = checkpoint ? Status() : fail(checkpoint.error());
  std::vector<std::byte> w(32, std::byte{0xEE}), own(16, std::byte{0xEE});
  if (checkpoint) {
    status = checkpoint->read(std::vector{
        Target{.name = "w", .dtype = DType::kU8, .shape = {4, 8}, .data = w.data()},
        Target{.name = "own", .dtype = DType::kU8, .shape = {16}, .data = own.data()},
    });
  }
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().kind, ErrorKind::kCorrupt);
  EXPECT_THAT(status.error().to_string(), testing::HasSubstr(GetParam().refusal));
  EXPECT_EQ(w, std::vector<std::byte>(32, std::byte{0xEE}));
  EXPECT_EQ(own, std::vector<std::byte>(16, std::byte{0xEE}));
}

const Lie kLies[] = {
    {"boxes_that_overlap", [](auto& entries) { entry(entries, "w").shards[1].box_offset = {1, 0}; },
     "'w' was saved in do not cover it exactly: more than one of them holds [1:2,0:8]"},
    {"boxes_with_a_gap", [](auto& entries) { entry(entries, "w").shards.pop_back(); },
     "'w' was saved in do not cover it exactly: none of them holds [2:4,0:8]"},
    {"a_box_outside", [](auto& entries) { entry(entries, "w").shards[1].box_offset = {3, 0}; }, "'w' has a shard"},
    {"a_box_of_another_size", [](auto& entries) { entry(entries, "w").shards[1].size_bytes = 17; }, "'w' has a shard"},
    {"a_file_elsewhere", [](auto& entries) { entry(entries, "w").shards[1].file = "../../etc/passwd"; },
     "'../../etc/passwd' leaves the directory"},
    {"a_file_elsewhere_through_a_subdirectory",
     [](auto& entries) { entry(entries, "w").shards[1].file = "g0001/../../x"; },
     "'g0001/../../x' leaves the directory"},
    {"a_subdirectory_that_such_a_version_lacks",
     [](auto& entries) { entry(entries, "w").shards[1].file = "g0001/rank-00001.safetensors"; },
     "'g0001/rank-00001.safetensors' is named here, which is not a data file of rank 1"},
    {"no_subdirectory_where_there_are_some",
     [](auto& entries) { entry(entries, "w").shards[1].file = "rank-00001.safetensors"; },
     "'rank-00001.safetensors' is named here, which is not a data file of rank 1",
     {.ranks_in_directory = 1}},
    {"the_subdirectory_of_another_rank",
     [](auto& entries) { entry(entries, "w").shards[1].file = "g0000/rank-00001.safetensors"; },
     "'g0000/rank-00001.safetensors' is named here, which is not a data file of rank 1",
     {.ranks_in_directory = 1}},
    {"a_file_that_is_not_ours", [](auto& entries) { entry(entries, "w").shards[1].file = "notes.txt"; },
     "'notes.txt' is not a data file"},
    {"a_record_as_data", [](auto& entries) { entry(entries, "w").shards[1].file = "rank-00001.record"; },
     "'rank-00001.record' is not a data file"},
    {"a_rank_that_is_not_there", [](auto& entries) { entry(entries, "w").shards[1].file = "rank-00002.safetensors"; },
     "not a data file of a version of 2 ranks"},
    {"a_part_no_record_names", [](auto& entries) { entry(entries, "w").shards[1].file = "rank-00001-7.safetensors"; },
     "the record of rank 1 does not"},
    {"bytes_behind_the_end", [](auto& entries) { entry(entries, "w").shards[1].offset += 1u << 20; },
     "the index places tensor 'w' at bytes"},
    {"bytes_at_the_end_of_numbers",
     [](auto& entries) { entry(entries, "w").shards[1].offset = ~std::uint64_t{0} - 20; },
     "the index places tensor 'w' at bytes"},
    {"tensors_that_overlap",
     [](auto& entries) {
       entry(entries, "rank-00000/own").shards[0].offset = entry(entries, "w").shards[0].offset + 8;
     },
     "overlap at byte"},
    {"a_local_tensor_in_the_file_of_another_rank",
     [](auto& entries) { entry(entries, "rank-00000/own").shards[0].file = "rank-00001.safetensors"; },
     "'rank-00000/own' of rank 0 in 'rank-00001.safetensors'"},
    {"a_name_for_two",
     [](auto& entries) {
       IndexEntry twin = entry(entries, "w");
       twin.name = "own";
       entries.push_back(twin);
     },
     "tensor 'own' is stored in"},
    {"a_tied_tensor_of_another_shape",
     [](auto& entries) {
       entries.push_back({.name = "tied", .dtype = DType::kU8, .shape = {4, 9}, .alias_of = "w", .shards = {}});
     },
     "'tied' is tied to 'w', which has another shape"},
};

INSTANTIATE_TEST_SUITE_P(Lies, HostileIndexTest, testing::ValuesIn(kLies),
                         [](const auto& lie) { return std::string(lie.param.name); });

}  // namespace
}  // namespace slackwater
