#include "ranks/vote.hpp"

#include <gtest/gtest.h>

#include "version/names.hpp"

namespace slackwater {
namespace {

Digest128 of(std::string_view text) { return digest128(text); }

Vote vote_of(std::uint32_t rank) {
  return {.records = {run_of(rank, of("record"))},
          .index_parts = {{rank, 1, of("part"), "part"}},
          .size_bytes = 10,
          .replicas = {{"dp", {{.ranks = {rank}, .tensors = {{"v", of("v")}, {"w[0:2]", of("w")}}}}}},
          .samples = {{"dp", {{.ranks = {rank}, .list = 7, .count = 9, .all = of("all"), .some = {{"w[0:2]", 5}}}}}},
          .replicated_values = {{.ranks = {rank}, .list = 0, .count = 1, .all = of("epoch"), .some = {{"epoch", 3}}}},
          .values = {{"model", of("model")}, {"rng", of("rng")}},
          .failures = {}};
}

Vote sent(const Vote& vote) {
  auto back = parse_vote(to_message(vote), "test");
  EXPECT_TRUE(back) << back.error().to_string();
  return std::move(*back);
}

TEST(Vote, ComesBackAsItWasAndMergesByRank) {
  Vote all = vote_of(9);
  all.failures = {{9, "late"}, {8, "late"}};
  Vote four = vote_of(4);
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
  Vote well = vote_of(0);
  merge(well, sent(all));
  EXPECT_EQ(describe(well.failures), "ranks 8, 9: late") << "a failure behind a group leader is one of the step";
}

TEST(Vote, RecordsOfConsecutiveRanksAreSentAsOneRun) {
  Vote all = vote_of(7);
  for (const std::uint32_t rank : {4u, 6u, 9u}) {
    Vote other = vote_of(rank);
    other.records = {run_of(rank, of(std::to_string(rank)))};
    merge(all, sent(other));
  }
  const Vote back = sent(all);
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

TEST(Vote, AMalformedDigestIsNoticedWhenItIsNeeded) {
  Vote vote = vote_of(3);
  vote.records[0].digests[5] = 'x';
  const auto records = references(sent(vote), {}, "test");
  ASSERT_FALSE(records);
  EXPECT_NE(records.error().message.find("rank 3"), std::string::npos) << records.error().message;
}

TEST(Vote, EqualReplicasAreSentOnce) {
  Vote all = vote_of(0);
  for (const std::uint32_t rank : {3u, 1u, 2u}) merge(all, sent(vote_of(rank)));
  ASSERT_EQ(all.replicas.size(), 1u);
  ASSERT_EQ(all.replicas["dp"].size(), 1u);
  EXPECT_EQ(all.replicas["dp"][0].ranks, (std::vector<std::uint32_t>{0, 1, 2, 3}));
  EXPECT_EQ(all.replicas["dp"][0].tensors, vote_of(0).replicas["dp"][0].tensors);
  EXPECT_EQ(replica_mismatch(all), std::nullopt);
}

TEST(Vote, AReplicaThatDiffersIsNamedWithTheRanks) {
  Vote other = vote_of(2);
  other.replicas["dp"][0].tensors[1].second = of("something else");
  Vote all = vote_of(0);
  merge(all, sent(vote_of(1)));
  merge(all, sent(other));
  const auto mismatch = replica_mismatch(all);
  ASSERT_TRUE(mismatch);
  EXPECT_NE(mismatch->find("tensor 'w[0:2]' of replica group 'dp' is not the same on ranks 0, 1 and rank 2"),
            std::string::npos)
      << *mismatch;

  Vote lacking = vote_of(2);
  lacking.replicas["dp"][0].tensors.pop_back();
  all = vote_of(0);
  merge(all, sent(lacking));
  EXPECT_NE(replica_mismatch(all)->find("'w[0:2]'"), std::string::npos);
}

TEST(Vote, EqualSamplesAreSentOnceWithRunsOfRanks) {
  Vote all = vote_of(0);
  for (std::uint32_t rank = 1; rank < 1000; ++rank) merge(all, sent(vote_of(rank)));
  for (std::uint32_t rank = 1002; rank < 3000; rank += 8) merge(all, sent(vote_of(rank)));
  const Vote back = sent(all);
  ASSERT_EQ(back.samples.at("dp").size(), 1u);
  const ReplicaSamples& samples = back.samples.at("dp")[0];
  EXPECT_EQ(samples.ranks, all.samples["dp"][0].ranks);
  EXPECT_EQ(samples.ranks.size(), 1250u);
  EXPECT_EQ(samples.list, 7u);
  EXPECT_EQ(samples.count, 9u);
  EXPECT_EQ(samples.all, of("all"));
  EXPECT_EQ(samples.some, (std::vector<std::pair<std::string, std::uint64_t>>{{"w[0:2]", 5}}));
  ASSERT_EQ(back.replicated_values.size(), 1u);
  EXPECT_EQ(back.replicated_values[0].ranks.size(), 1250u);
  EXPECT_EQ(replica_mismatch(back), std::nullopt);
  EXPECT_LT(to_message(all).body["samples"].dump().size(), 200u) << "whatever the number of ranks";
}

TEST(Vote, SamplesThatDifferAreNamedIfTheyWereListed) {
  Vote other = vote_of(2);
  other.samples["dp"][0].all = of("other");
  Vote all = vote_of(0);
  merge(all, sent(vote_of(1)));
  merge(all, sent(other));
  EXPECT_EQ(
      replica_mismatch(sent(all)),
      "a tensor of replica group 'dp' is not the same on ranks 0, 1 and rank 2 (the saves that follow compare every "
      "byte, and name it); bring the replicas into step, or save it as a tensor of each rank");
  other.samples["dp"][0].some[0].second = 6;
  all = vote_of(0);
  merge(all, sent(other));
  EXPECT_EQ(
      replica_mismatch(all),
      "tensor 'w[0:2]' of replica group 'dp' is not the same on rank 0 and rank 2; bring the replicas into step, or "
      "save it as a tensor of each rank");
  other.samples["dp"][0].list = 8;  // it has looked at others
  all = vote_of(0);
  merge(all, sent(other));
  EXPECT_EQ(replica_mismatch(all), std::nullopt);
}

TEST(Vote, AReplicatedValueThatDiffersOrThatARankLacksIsNamed) {
  Vote other = vote_of(1);
  other.replicated_values[0].all = of("other");
  other.replicated_values[0].some[0].second = 4;
  Vote all = vote_of(0);
  merge(all, sent(other));
  EXPECT_EQ(replica_mismatch(all),
            "replicated value 'epoch' is not the same on rank 0 and rank 1; bring the ranks into step, or save it as a "
            "value of each rank");
  other.replicated_values[0].some = {{"epoch", 3}, {"seed", 1}};
  other.replicated_values[0].count = 2;
  all = vote_of(0);
  merge(all, sent(other));
  EXPECT_NE(replica_mismatch(all)->find("replicated value 'seed' is not"), std::string::npos);
  other.replicated_values[0].some.clear();  // it lists none of its two
  all = vote_of(0);
  merge(all, sent(other));
  EXPECT_NE(replica_mismatch(all)->find("a replicated value is not the same on rank 0 and rank 1 (the saves"),
            std::string::npos);
}

TEST(Vote, ValuesThatDifferOrThatARankLacksAreRankLocal) {
  Vote all = vote_of(0);
  merge(all, sent(vote_of(1)));
  EXPECT_TRUE(rank_local_values(all).empty());
  Vote other = vote_of(2);
  other.values["rng"] = of("other");
  other.values["data"] = of("data");
  merge(all, sent(other));
  EXPECT_EQ(rank_local_values(all), (std::vector<std::string>{"data", "rng"}));
  merge(all, sent(vote_of(3)));  // once different is different
  EXPECT_EQ(rank_local_values(sent(all)), (std::vector<std::string>{"data", "rng"}));

  Vote more = vote_of(0);
  more.values["data"] = of("data");
  merge(more, sent(vote_of(1)));  // the later one lacks it
  EXPECT_EQ(rank_local_values(more), (std::vector<std::string>{"data"}));
}

TEST(Vote, AMalformedVoteIsRefused) {
  const Message good = to_message(vote_of(1));
  for (const char* field :
       {"records", "index_parts", "size_bytes", "replicas", "samples", "replicated_values", "values", "failures"}) {
    Message bad = good;
    bad.body.erase(field);
    EXPECT_FALSE(parse_vote(bad, "test")) << field;
  }
  for (const auto& [place, value] : std::vector<std::pair<std::string, Json>>{{"/records/0/ranks", 9},
                                                                              {"/records/0/first", -1},
                                                                              {"/index_parts/0/ranks", "one"},
                                                                              {"/index_parts/0/digest", "x"},
                                                                              {"/index_parts/0/bytes", 5},
                                                                              {"/replicas/0/ranks/0", "zero"},
                                                                              {"/replicas/0/tensors/v", "x"},
                                                                              {"/samples/0/list", -1},
                                                                              {"/samples/0/count", "one"},
                                                                              {"/samples/0/all", "x"},
                                                                              {"/samples/0/some/w[0:2]", "x"},
                                                                              {"/samples/0/ranks/0", 1},
                                                                              {"/samples/0/ranks/0/2", -1},
                                                                              {"/samples/0/ranks/0/2", 1u << 30},
                                                                              {"/samples/0/ranks/0/0", 1u << 30},
                                                                              {"/replicated_values/0/ranks", 3},
                                                                              {"/values/rng", 3}}) {
    Message bad = good;
    bad.body[Json::json_pointer(place)] = value;
    EXPECT_FALSE(parse_vote(bad, "test")) << place;
  }
}

}  // namespace
}  // namespace slackwater
