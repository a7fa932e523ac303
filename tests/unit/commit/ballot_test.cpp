#include "commit/ballot.hpp"

#include <gtest/gtest.h>

#include "commit/names.hpp"

namespace slackwater {
namespace {

Digest128 of(std::string_view text) { return digest128(text); }

Ballot ballot_of(std::uint32_t rank) {
  return {.records = {run_of(rank, of("record"))},
          .index_parts = {{rank, 1, of("part"), "part"}},
          .size_bytes = 10,
          .replicas = {{"dp", {{.ranks = {rank}, .tensors = {{"v", of("v")}, {"w[0:2]", of("w")}}}}}},
          .values = {{"model", of("model")}, {"rng", of("rng")}},
          .failures = {}};
}

Ballot sent(const Ballot& ballot) {
  auto back = parse_ballot(to_message(ballot), "test");
  EXPECT_TRUE(back) << back.error().to_string();
  return std::move(*back);
}

TEST(Ballot, ComesBackAsItWasAndMergesByRank) {
  Ballot all = ballot_of(9);
  all.failures = {{9, "late"}, {8, "late"}};
  Ballot four = ballot_of(4);
  four.index_parts[0].text.clear();
  merge(all, sent(four));
  const auto records = references(all, {}, "test");
  ASSERT_TRUE(records) << records.error().to_string();
  ASSERT_EQ(records->size(), 2u);
  EXPECT_EQ(records->at(0).rank, 4u);
  EXPECT_EQ(records->at(0).file, "rank-00004.record");
  EXPECT_EQ(records->at(0).digest, of("record"));
  ASSERT_EQ(all.index_parts.size(), 2u);
  EXPECT_EQ(all.index_parts[0].rank, 4u);
  EXPECT_EQ(all.index_parts[0].digest, of("part"));
  EXPECT_EQ(all.index_parts[0].text, "");
  EXPECT_EQ(all.index_parts[1].text, "part");
  EXPECT_EQ(all.size_bytes, 20u);
  EXPECT_EQ(describe(all.failures), "ranks 8, 9: late");
  const auto text = sent(all);
  EXPECT_EQ(text.index_parts.size(), 2u);
  EXPECT_EQ(text.failures.size(), 2u);
}

TEST(Ballot, RecordsOfRanksThatFollowEachOtherAreSaidTogether) {
  Ballot all = ballot_of(7);
  for (const std::uint32_t rank : {4u, 6u, 9u}) {
    Ballot other = ballot_of(rank);
    other.records = {run_of(rank, of(std::to_string(rank)))};
    merge(all, sent(other));
  }
  const Ballot back = sent(all);
  ASSERT_EQ(back.records.size(), 3u);  // 4, 6 and 7, 9
  EXPECT_EQ(back.records[1].first, 6u);
  EXPECT_EQ(back.records[1].ranks(), 2u);
  const auto records = references(back, {}, "test");
  ASSERT_TRUE(records) << records.error().to_string();
  std::vector<std::uint32_t> ranks;
  for (const RecordReference& record : *records) {
    ranks.push_back(record.rank);
    EXPECT_EQ(record.file, record_file(record.rank));
    EXPECT_EQ(record.digest, of(record.rank == 7 ? "record" : std::to_string(record.rank)));
  }
  EXPECT_EQ(ranks, (std::vector<std::uint32_t>{4, 6, 7, 9}));
}

TEST(Ballot, DigestsThatAreNoneAreNoticedByWhoNeedsThem) {
  Ballot ballot = ballot_of(3);
  ballot.records[0].digests[5] = 'x';
  const auto records = references(sent(ballot), {}, "test");
  ASSERT_FALSE(records);
  EXPECT_NE(records.error().message.find("rank 3"), std::string::npos) << records.error().message;
}

TEST(Ballot, ReplicasThatAreAlikeAreSaidOnce) {
  Ballot all = ballot_of(0);
  for (const std::uint32_t rank : {3u, 1u, 2u}) merge(all, sent(ballot_of(rank)));
  ASSERT_EQ(all.replicas.size(), 1u);
  ASSERT_EQ(all.replicas["dp"].size(), 1u);
  EXPECT_EQ(all.replicas["dp"][0].ranks, (std::vector<std::uint32_t>{0, 1, 2, 3}));
  EXPECT_EQ(all.replicas["dp"][0].tensors, ballot_of(0).replicas["dp"][0].tensors);
  EXPECT_EQ(replica_mismatch(all), std::nullopt);
}

TEST(Ballot, AReplicaThatDiffersIsNamedWithTheRanks) {
  Ballot other = ballot_of(2);
  other.replicas["dp"][0].tensors[1].second = of("something else");
  Ballot all = ballot_of(0);
  merge(all, sent(ballot_of(1)));
  merge(all, sent(other));
  const auto mismatch = replica_mismatch(all);
  ASSERT_TRUE(mismatch);
  EXPECT_NE(mismatch->find("tensor 'w[0:2]' of replica group 'dp' is not the same on ranks 0, 1 and rank 2"),
            std::string::npos)
      << *mismatch;

  Ballot lacking = ballot_of(2);
  lacking.replicas["dp"][0].tensors.pop_back();
  all = ballot_of(0);
  merge(all, sent(lacking));
  EXPECT_NE(replica_mismatch(all)->find("'w[0:2]'"), std::string::npos);
}

TEST(Ballot, ValuesThatDifferOrThatARankLacksAreRankLocal) {
  Ballot all = ballot_of(0);
  merge(all, sent(ballot_of(1)));
  EXPECT_TRUE(rank_local_values(all).empty());
  Ballot other = ballot_of(2);
  other.values["rng"] = of("other");
  other.values["data"] = of("data");
  merge(all, sent(other));
  EXPECT_EQ(rank_local_values(all), (std::vector<std::string>{"data", "rng"}));
  merge(all, sent(ballot_of(3)));  // once different is different
  EXPECT_EQ(rank_local_values(sent(all)), (std::vector<std::string>{"data", "rng"}));
}

TEST(Ballot, WhatIsNoneIsRefused) {
  const Message good = to_message(ballot_of(1));
  for (const char* field : {"records", "index_parts", "size_bytes", "replicas", "values", "failures"}) {
    Message bad = good;
    bad.body.erase(field);
    EXPECT_FALSE(parse_ballot(bad, "test")) << field;
  }
  for (const auto& [place, value] : std::vector<std::pair<std::string, Json>>{{"/records/0/ranks", 9},
                                                                              {"/records/0/first", -1},
                                                                              {"/index_parts/0/ranks", "one"},
                                                                              {"/index_parts/0/digest", "x"},
                                                                              {"/index_parts/0/bytes", 5},
                                                                              {"/replicas/0/ranks/0", "zero"},
                                                                              {"/replicas/0/tensors/v", "x"},
                                                                              {"/values/rng", 3}}) {
    Message bad = good;
    bad.body[Json::json_pointer(place)] = value;
    EXPECT_FALSE(parse_ballot(bad, "test")) << place;
  }
}

}  // namespace
}  // namespace slackwater
