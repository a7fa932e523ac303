#include "version/manifest.hpp"

#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include <gtest/gtest.h>

#include "base/json.hpp"

namespace slackwater {
namespace {
namespace manifest_test {  // example, forged: another file that this one may be compiled with has that name too

Manifest example() {
  Manifest manifest;
  manifest.run = "run";
  manifest.step = 42;
  manifest.attempt = 7;
  manifest.world = 2;
  manifest.records = {{0, "rank-00000.record", {1, 2}}, {1, "rank-00001.record", {3, 4}}};
  manifest.index_digest = {5, UINT64_MAX};
  manifest.size_bytes = std::uint64_t{1} << 40;
  manifest.tensor_count = 100'000;
  manifest.created_unix_ms = 1'700'000'000'000;
  return manifest;
}

std::string forged(const std::function<void(Json&)>& change) {
  Json json = *open_sealed_json(serialize(example()), "manifest.json");
  change(json);
  return seal_json(json);
}

void expect_error(const std::string& text, std::string_view words, ErrorKind kind = ErrorKind::kCorrupt) {
  const auto manifest = parse_manifest(text, "manifest.json");
  ASSERT_FALSE(manifest.has_value()) << words;
  EXPECT_EQ(manifest.error().kind, kind) << manifest.error().to_string();
  EXPECT_NE(manifest.error().message.find(words), std::string::npos) << manifest.error().to_string();
}

TEST(Manifest, ComesBackAsItWas) {
  const auto manifest = parse_manifest(serialize(example()), "manifest.json");
  ASSERT_TRUE(manifest.has_value()) << manifest.error().to_string();
  EXPECT_EQ(manifest->decision, Decision::kCommit);
  EXPECT_EQ(manifest->run, "run");
  EXPECT_EQ(manifest->step, 42u);
  EXPECT_EQ(manifest->attempt, 7u);
  EXPECT_EQ(manifest->world, 2u);
  ASSERT_EQ(manifest->records.size(), 2u);
  EXPECT_EQ(manifest->records[1].file, "rank-00001.record");
  EXPECT_EQ(manifest->records[1].digest, (Digest128{3, 4}));
  EXPECT_EQ(manifest->index_digest, (Digest128{5, UINT64_MAX}));
  EXPECT_EQ(manifest->size_bytes, std::uint64_t{1} << 40);
  EXPECT_EQ(manifest->tensor_count, 100'000u);
  EXPECT_EQ(manifest->created_unix_ms, 1'700'000'000'000);
}

TEST(Manifest, ValuesOfSingleRanksAndGlobalTensorsComeBack) {
  Manifest manifest = example();
  EXPECT_EQ(serialize(manifest).find("rank_local_values"), std::string::npos);  // as ever where there are none
  manifest.required_features = {kRankLocalFeature, kGlobalTensorsFeature};
  manifest.rank_local_values = {"data", "r\"n\ng"};
  const auto back = parse_manifest(serialize(manifest), "manifest.json");
  ASSERT_TRUE(back.has_value()) << back.error().to_string();
  EXPECT_EQ(back->required_features, manifest.required_features);
  EXPECT_EQ(back->rank_local_values, manifest.rank_local_values);
  expect_error(forged([](Json& json) { json["rank_local_values"] = {1}; }), "rank_local_values");
  expect_error(forged([](Json& json) { json["rank_local_values"] = "rng"; }), "rank_local_values");
}

TEST(Manifest, MetricsComeBackToTheLastBit) {
  EXPECT_EQ(serialize(example()).find("metrics"), std::string::npos);  // as ever where there are none
  Manifest manifest = example();
  const double infinity = std::numeric_limits<double>::infinity();
  manifest.metrics = {{"loss", 0.1}, {"l\"ss", -1e-300}, {"steps", 7}, {"bad", infinity}};
  const auto back = parse_manifest(serialize(manifest), "manifest.json");
  ASSERT_TRUE(back.has_value()) << back.error().to_string();
  EXPECT_EQ(back->metrics.size(), 4u);
  EXPECT_EQ(back->metrics.at("loss"), 0.1);
  EXPECT_EQ(back->metrics.at("l\"ss"), -1e-300);
  EXPECT_EQ(back->metrics.at("steps"), 7.0);
  EXPECT_TRUE(std::isnan(back->metrics.at("bad")));
  expect_error(forged([](Json& json) { json["metrics"] = {1}; }), "metrics");
  expect_error(forged([](Json& json) { json["metrics"] = {{"loss", "low"}}; }), "loss");
}

TEST(Manifest, SubdirectoriesComeBackAndEachRecordMustLieInItsOwn) {
  EXPECT_EQ(serialize(example()).find("ranks_in_directory"), std::string::npos);  // as ever where there are none
  const auto divided = [](Json& json) {
    json["required_features"] = {kSubdirectoriesFeature};
    json["ranks_in_directory"] = 1;
    json["records"][0]["file"] = "g0000/rank-00000.record";
    json["records"][1]["file"] = "g0001/rank-00001.record";
  };
  const auto manifest = parse_manifest(forged(divided), "manifest.json");
  ASSERT_TRUE(manifest.has_value()) << manifest.error().to_string();
  EXPECT_EQ(manifest->files, RankFiles{.ranks_in_directory = 1});
  EXPECT_EQ(serialize(*manifest), forged(divided));

  const auto changed = [&](const std::function<void(Json&)>& change) {
    return forged([&](Json& json) {
      divided(json);
      change(json);
    });
  };
  for (const char* name : {"rank-00001.record", "g0000/rank-00001.record", "g0001/rank-00000.record", "notes.txt"})
    expect_error(changed([&](Json& json) { json["records"][1]["file"] = name; }), "'g0001/rank-00001.record'");
  for (const char* name : {"g0001/../rank-00001.record", "g0001//rank-00001.record", "g1/rank-00001.record",
                           "/g0001/rank-00001.record", "g0001/index"})
    expect_error(changed([&](Json& json) { json["records"][1]["file"] = name; }), "leaves the directory");
  expect_error(changed([](Json& json) { json["ranks_in_directory"] = 2; }), "'g0000/rank-00001.record'");
  expect_error(changed([](Json& json) { json["ranks_in_directory"] = 0; }), "'ranks_in_directory' is 0");
  expect_error(changed([](Json& json) { json["ranks_in_directory"] = std::uint64_t{1} << 32; }), "ranks_in_directory");
  expect_error(changed([](Json& json) { json.erase("ranks_in_directory"); }), "belong together");
  expect_error(changed([](Json& json) { json["required_features"] = Json::array(); }), "belong together");
  expect_error(forged([](Json& json) { json["records"][1]["file"] = "g0001/rank-00001.record"; }),
               "'rank-00001.record'");
}

TEST(Manifest, AnAbortStatesItsReasonAndNeedsNoRecords) {
  Manifest manifest = example();
  manifest.decision = Decision::kAbort;
  manifest.reason = "rank 1 did not answer";
  manifest.records.clear();
  const auto back = parse_manifest(serialize(manifest), "manifest.json");
  ASSERT_TRUE(back.has_value()) << back.error().to_string();
  EXPECT_EQ(back->decision, Decision::kAbort);
  EXPECT_EQ(back->reason, "rank 1 did not answer");
}

TEST(Manifest, NoFlippedBitIsAccepted) {
  const std::string text = serialize(example());
  for (std::size_t at = 0; at < text.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = text;
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << bit));
      const auto manifest = parse_manifest(damaged, "manifest.json");
      ASSERT_FALSE(manifest.has_value()) << "byte " << at << " bit " << bit;
      ASSERT_EQ(manifest.error().kind, ErrorKind::kCorrupt);
    }
  }
}

TEST(Manifest, NoCutTextIsAccepted) {
  const std::string text = serialize(example());
  for (std::size_t length = 0; length < text.size(); ++length) {
    EXPECT_FALSE(parse_manifest(text.substr(0, length), "manifest.json").has_value()) << length;
  }
}

TEST(Manifest, NewerFormatsAndFeaturesAreRefusedByName) {
  expect_error(forged([](Json& json) { json["format"] = 2; }), "format 2", ErrorKind::kUnsupported);
  expect_error(forged([](Json& json) { json["required_features"] = {"delta-encoding"}; }), "'delta-encoding'",
               ErrorKind::kUnsupported);
  expect_error(forged([](Json& json) { json["required_features"] = {1}; }), "required_features");
}

TEST(Manifest, RecordsMustBeThoseOfAllRanks) {
  expect_error(forged([](Json& json) { json["records"].erase(0); }), "1 records for 2 ranks");
  expect_error(forged([](Json& json) { json["records"][1]["rank"] = 0; }), "record of rank 1");
  expect_error(forged([](Json& json) { json["records"][1]["file"] = "../../evil.record"; }), "leaves the directory");
  expect_error(forged([](Json& json) { json["records"][1]["digest"] = "12"; }), "'digest'");
  expect_error(forged([](Json& json) { json["world"] = 0; }), "2 records for 0 ranks");
  expect_error(forged([](Json& json) { json["world"] = std::uint64_t{1} << 60; }), "'world'");
}

TEST(Manifest, FieldsMustMakeSense) {
  expect_error(forged([](Json& json) { json["decision"] = "maybe"; }), "neither commit nor abort");
  expect_error(forged([](Json& json) { json.erase("step"); }), "'step'");
  expect_error(forged([](Json& json) { json["records"] = "none"; }), "'records'");
  expect_error(forged([](Json& json) { json["created_unix_ms"] = UINT64_MAX; }), "'created_unix_ms'");
}

TEST(Manifest, DuplicateKeysAreRefusedEvenUnderAGoodDigest) {
  std::string body = serialize(example());
  body.resize(body.rfind(",\"digest\""));
  expect_error(seal_json_text(body + ",\"step\":43"), "'step' twice");
}

}  // namespace manifest_test
}  // namespace
}  // namespace slackwater
