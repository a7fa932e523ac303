#include "ranks/merged_index.hpp"

#include <map>

#include <gtest/gtest.h>

#include "version/names.hpp"

namespace slackwater {
namespace {

using Shape = std::vector<std::int64_t>;

// One byte an element, in the rank's file.
IndexShard shard(std::uint32_t rank, Shape offset, Shape shape) {
  std::uint64_t size = 1;
  for (const std::int64_t extent : shape) size *= static_cast<std::uint64_t>(extent);
  return {std::move(offset), std::move(shape), data_file(rank, 0), 4096, size};
}

IndexEntry stored(const std::string& name, const Shape& shape, std::vector<IndexShard> shards) {
  return {name, DType::kU8, shape, {}, std::move(shards)};
}

IndexEntry tied(const std::string& name, const Shape& shape, const std::string& to) {
  return {name, DType::kU8, shape, to, {}};
}

IndexPart part(std::uint32_t rank, const std::vector<IndexEntry>& entries) {
  std::string text = serialize_index(entries);
  return {rank, 1, digest128(text), std::move(text)};
}

IndexPart only_named(IndexPart whole) {
  whole.text.clear();
  return whole;
}

// Rank `rank` of `world` has as many rows of w, and a tensor of its own.
IndexPart row_part(std::uint32_t rank, std::uint32_t world, const std::string& own = "own") {
  return part(rank, {stored("w", {world, 4}, {shard(rank, {rank, 0}, {1, 4})}),
                     stored(local_name(rank, own), {3}, {shard(rank, {0}, {3})})});
}

std::string trouble(const std::vector<IndexPart>& parts) {
  const auto merged = merge_index(parts, Scope::kEverybody);
  EXPECT_FALSE(merged);
  if (merged) return {};
  EXPECT_EQ(merged.error().kind, ErrorKind::kMismatch);
  return merged.error().message;
}

void expect_words(const std::string& text, std::string_view words) {
  EXPECT_NE(text.find(words), std::string::npos) << text;
}

TEST(MergeIndex, APartThatDoesNotMatchItsDigestIsNamed) {
  IndexPart garbled = row_part(1, 2);
  garbled.text = row_part(1, 2, "other").text;  // whole and sealed, but of another step
  expect_words(trouble({row_part(0, 2), garbled}), "rank 1's part of the index: its text does not have the digest");
}

TEST(MergeIndex, GlobalTensorsBecomeOneEntryAndOthersKeepTheirRank) {
  const auto merged = merge_index(std::vector{row_part(0, 3), row_part(1, 3), row_part(2, 3)}, Scope::kEverybody);
  ASSERT_TRUE(merged) << merged.error().to_string();
  EXPECT_EQ(merged->tensor_count, 4u);
  EXPECT_TRUE(merged->has_global);
  EXPECT_TRUE(merged->has_local);
  EXPECT_EQ(merged->digest, digest128(merged->text));
  const auto entries = parse_index(merged->text, "index");
  ASSERT_TRUE(entries) << entries.error().to_string();
  ASSERT_EQ(entries->at(0).shards.size(), 3u);
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(entries->at(0).shards[rank].box_offset, (Shape{rank, 0}));
    EXPECT_EQ(entries->at(0).shards[rank].file, data_file(rank, 0));
    EXPECT_EQ(entries->at(rank + 1).name, local_name(rank, "own"));
  }
  EXPECT_FALSE(
      merge_index(std::vector{part(0, {stored("w", {2}, {shard(0, {0}, {2})})})}, Scope::kEverybody)->has_local);
  EXPECT_FALSE(
      merge_index(std::vector{part(0, {stored(local_name(0, "w"), {2}, {shard(0, {0}, {2})})})}, Scope::kEverybody)
          ->has_global);
}

TEST(MergeIndex, WhatIsMissingOrDoubledIsNamed) {
  const std::string hole = trouble({row_part(0, 3), row_part(2, 3)});
  expect_words(hole, "tensor 'w' of shape [3, 4] is not complete: nobody has [1:2,0:4], 4 elements are missing in all");
  expect_words(hole, "ranks 0, 2 hold parts of it");
  const std::string twice =
      trouble({part(1, {stored("w", {4}, {shard(1, {0}, {3})})}), part(5, {stored("w", {4}, {shard(5, {2}, {2})})})});
  expect_words(twice, "stored twice in part: [2:3] lies in [0:3] of rank 1 and in [2:4] of rank 5");
}

TEST(MergeIndex, RanksThatDisagreeAreNamed) {
  const IndexPart zero = part(0, {stored("w", {4}, {shard(0, {0}, {2})})});
  expect_words(trouble({zero, part(1, {stored("w", {5}, {shard(1, {2}, {2})})})}),
               "'w' is uint8 of shape [4] on rank 0, but uint8 of shape [5] on rank 1");
  IndexEntry other = stored("w", {4}, {shard(2, {2}, {2})});
  other.dtype = DType::kI8;
  expect_words(trouble({zero, part(2, {other})}), "but int8 of shape [4] on rank 2");
  expect_words(trouble({zero, part(1, {stored("w", {4}, {shard(0, {2}, {2})})})}), "rank 1 claims tensor 'w'");
  expect_words(trouble({part(0, {stored(local_name(1, "w"), {2}, {shard(0, {0}, {2})})})}),
               "rank 0 claims tensor 'rank-00001/w'");
  expect_words(trouble({part(0, {stored("w", {4}, {shard(0, {0}, {4})})}),
                        part(1, {stored(local_name(1, "w"), {4}, {shard(1, {0}, {4})})})}),
               "tensor 'w' is rank 1's own, but on rank 0 a part of a global tensor");
  IndexPart damaged = zero;
  damaged.text[20] ^= 1;
  expect_words(trouble({damaged}), "rank 0's part of the index");
  damaged.digest = digest128(damaged.text);
  expect_words(trouble({damaged}), "rank 0's part of the index");
}

TEST(MergeIndex, TensorsMustBeTiedInTheSameWayOnAllRanks) {
  const auto one = [](std::uint32_t rank, std::int64_t row, IndexEntry more) {
    return part(rank, {stored("a", {2}, {shard(rank, {row}, {1})}), std::move(more)});
  };
  const auto merged =
      merge_index(std::vector{one(0, 0, tied("b", {2}, "a")), one(1, 1, tied("b", {2}, "a"))}, Scope::kEverybody);
  ASSERT_TRUE(merged) << merged.error().to_string();
  EXPECT_EQ(parse_index(merged->text, "index")->at(1).alias_of, "a");
  expect_words(trouble({one(0, 0, tied("b", {2}, "a")), one(1, 1, stored("b", {2}, {shard(1, {1}, {1})}))}),
               "tensor 'b' is tied to 'a' on rank 0, but to none on rank 1");
}

TEST(MergeIndex, ATensorWithoutElementsNeedsNoShards) {
  const auto merged = merge_index(std::vector{part(0, {stored("e", {0, 3}, {})}), part(1, {stored("e", {0, 3}, {})})},
                                  Scope::kEverybody);
  ASSERT_TRUE(merged) << merged.error().to_string();
  const auto entries = parse_index(merged->text, "index");
  ASSERT_TRUE(entries) << entries.error().to_string();
  EXPECT_EQ(entries->size(), 1u);
  EXPECT_TRUE(entries->at(0).shards.empty());
}

// A hundred thousand boxes over 400 tensors. Quadratic work would not end within the test's time.
TEST(MergeIndex, ManyRanksAndManyTensorsAreMergedInOnePass) {
  constexpr std::uint32_t kWorld = 256, kTensors = 400;
  std::vector<IndexPart> parts;
  for (std::uint32_t rank = 0; rank < kWorld; ++rank) {
    std::vector<IndexEntry> entries;
    for (std::uint32_t i = 0; i < kTensors; ++i)
      entries.push_back(stored("layer." + std::to_string(i), {kWorld, 4}, {shard(rank, {rank, 0}, {1, 4})}));
    parts.push_back(part(rank, entries));
  }
  const auto merged = merge_index(parts, Scope::kEverybody);
  ASSERT_TRUE(merged) << merged.error().to_string();
  EXPECT_EQ(merged->tensor_count, kTensors);
}

// What a group's group leader makes of its group is a part like any other.
TEST(MergeIndex, PartsOfGroupsMakeTheIndexThatPartsOfRanksMake) {
  const auto of_group = [](std::uint32_t first, const std::vector<IndexPart>& parts) {
    const auto merged = merge_index(parts, Scope::kGroup);
    EXPECT_TRUE(merged) << merged.error().to_string();
    return IndexPart{first, static_cast<std::uint32_t>(parts.size()), merged->digest, merged->text};
  };
  const IndexPart low = of_group(0, {row_part(0, 5), row_part(1, 5), row_part(2, 5)});
  const IndexPart high = of_group(3, {row_part(3, 5), row_part(4, 5)});
  std::vector<IndexPart> each;
  for (std::uint32_t rank = 0; rank < 5; ++rank) each.push_back(row_part(rank, 5));
  const auto by_group = merge_index(std::vector{low, high}, Scope::kEverybody);
  const auto by_rank = merge_index(each, Scope::kEverybody);
  ASSERT_TRUE(by_group) << by_group.error().to_string();
  const auto entries = [](const MergedIndex& merged) {
    std::map<std::string, std::vector<std::string>> files;
    const auto parsed = parse_index(merged.text, "index");
    for (const IndexEntry& entry : parsed.value()) {
      for (const IndexShard& shard : entry.shards) files[entry.name].push_back(shard.file);
    }
    return files;
  };
  EXPECT_EQ(entries(*by_group), entries(*by_rank));
  EXPECT_EQ(by_group->tensor_count, 6u);

  expect_words(trouble({low}), "nobody has [3:5,0:4]");  // only the leader asks for all
  IndexPart too_wide = high;
  too_wide.ranks = 1;  // so rank 4 does not belong to it
  expect_words(trouble({low, too_wide}), "rank 3 claims tensor 'w', which belongs to another rank");
  const IndexPart other = of_group(3, {part(3, {}), part(4, {stored("w", {9, 4}, {shard(4, {4, 0}, {1, 4})})})});
  expect_words(trouble({low, other}), "of shape [5, 4] on rank 0, but uint8 of shape [9, 4] on rank 4");
}

TEST(IndexCache, APartIsSentAgainUnlessItsLastStepWasCommitted) {
  IndexCache index_cache;
  const auto sends_text = [&](std::uint32_t attempt, const IndexPart& part) {
    return index_cache.needs_text(attempt, part.digest);
  };
  EXPECT_TRUE(sends_text(1, row_part(1, 2)));
  index_cache.given_up();
  EXPECT_TRUE(sends_text(1, row_part(1, 2)));
  index_cache.committed();
  EXPECT_FALSE(sends_text(1, row_part(1, 2)));
  index_cache.committed();
  EXPECT_TRUE(sends_text(1, row_part(1, 2, "new")));
  index_cache.committed();
  EXPECT_FALSE(sends_text(1, row_part(1, 2, "new")));
  index_cache.committed();
  EXPECT_TRUE(sends_text(2, row_part(1, 2, "new")));  // another attempt
}

// Also of steps that were given up: else a merge that takes longer than anybody waits would begin from nothing each
// time.
TEST(IndexCache, UnchangedPartsNeedNoTextAndNoMerging) {
  IndexCache index_cache;
  const std::vector<IndexPart> whole{row_part(0, 2), row_part(1, 2)};
  const std::vector<IndexPart> named{only_named(whole[0]), only_named(whole[1])};
  EXPECT_FALSE(index_cache.merge(1, named, Scope::kEverybody));
  const auto first = index_cache.merge(1, whole, Scope::kEverybody);
  ASSERT_TRUE(first);
  index_cache.given_up();
  const auto again = index_cache.merge(1, named, Scope::kEverybody);
  ASSERT_TRUE(again) << again.error().to_string();
  EXPECT_EQ(again->get(), first->get());  // the same object: nothing was merged
  EXPECT_EQ(index_cache.merge(1, whole, Scope::kEverybody)->get(), first->get());
}

TEST(IndexCache, AChangedPartIsMergedWithThoseThatWereThere) {
  IndexCache index_cache;
  ASSERT_TRUE(index_cache.merge(1, {row_part(0, 3), row_part(1, 3), row_part(2, 3)}, Scope::kEverybody));
  const auto merged = index_cache.merge(
      1, {only_named(row_part(0, 3)), row_part(1, 3, "new"), only_named(row_part(2, 3))}, Scope::kEverybody);
  ASSERT_TRUE(merged) << merged.error().to_string();
  EXPECT_NE((*merged)->text.find("rank-00001/new"), std::string::npos);
  EXPECT_NE((*merged)->text.find("rank-00002/own"), std::string::npos);
  // It changes back.
  const auto back =
      index_cache.merge(1, {only_named(row_part(0, 3)), row_part(1, 3), only_named(row_part(2, 3))}, Scope::kEverybody);
  ASSERT_TRUE(back) << back.error().to_string();
  EXPECT_EQ((*back)->text.find("rank-00001/new"), std::string::npos);
}

TEST(IndexCache, APartThatIsNotThereIsNamedWithItsRank) {
  IndexCache index_cache;
  ASSERT_TRUE(index_cache.merge(1, {row_part(0, 2), row_part(1, 2)}, Scope::kEverybody));
  auto merged =
      index_cache.merge(1, {only_named(row_part(0, 2)), only_named(row_part(1, 2, "new"))}, Scope::kEverybody);
  ASSERT_FALSE(merged);
  EXPECT_EQ(merged.error().kind, ErrorKind::kMismatch);
  expect_words(merged.error().message,
               "rank 1 only named its part of the index, but its group leader does not have the text");
  merged = index_cache.merge(2, {only_named(row_part(0, 2)), row_part(1, 2)}, Scope::kEverybody);  // another attempt
  ASSERT_FALSE(merged);
  expect_words(merged.error().message, "rank 0 only named");
}

}  // namespace
}  // namespace slackwater
