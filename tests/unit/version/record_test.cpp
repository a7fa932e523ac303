#include "version/record.hpp"

#include <functional>
#include <string>

#include <gtest/gtest.h>

#include "base/digest.hpp"
#include "base/json.hpp"

namespace slackwater {
namespace {

Record example() {
  Record record{.run = "run", .identity = {.step = 42, .attempt = 7, .rank = 1, .world = 2}, .files = {}};
  record.files.push_back({"rank-00001.safetensors", kBlockBytes + 1, 3, {0x0123456789abcdef, UINT64_MAX}});
  record.files.push_back({"rank-00001-1.safetensors", kBlockBytes, 0, {0}});
  return record;
}

// The record's JSON with one change, sealed again: what a forger or a bug could write.
std::string forged(const std::function<void(Json&)>& change) {
  Json json = *open_sealed_json(serialize(example()), "record");
  change(json);
  return seal_json(json);
}

void expect_corrupt(const std::string& text, std::string_view words) {
  const auto record = parse_record(text, "record");
  ASSERT_FALSE(record.has_value()) << words;
  EXPECT_EQ(record.error().kind, ErrorKind::kCorrupt) << record.error().to_string();
  EXPECT_NE(record.error().message.find(words), std::string::npos) << record.error().to_string();
}

TEST(Record, ComesBackAsItWas) {
  const auto record = parse_record(serialize(example()), "record");
  ASSERT_TRUE(record.has_value()) << record.error().to_string();
  EXPECT_EQ(record->run, "run");
  EXPECT_EQ(record->identity.step, 42u);
  EXPECT_EQ(record->identity.attempt, 7u);
  EXPECT_EQ(record->identity.rank, 1u);
  EXPECT_EQ(record->identity.world, 2u);
  ASSERT_EQ(record->files.size(), 2u);
  EXPECT_EQ(record->files[0].name, "rank-00001.safetensors");
  EXPECT_EQ(record->files[0].size_bytes, kBlockBytes + 1);
  EXPECT_EQ(record->files[0].tensor_count, 3u);
  EXPECT_EQ(record->files[0].block_digests, (std::vector<std::uint64_t>{0x0123456789abcdef, UINT64_MAX}));
  EXPECT_EQ(record->files[1].block_digests, (std::vector<std::uint64_t>{0}));
}

TEST(Record, NoFlippedOrMissingByteIsAccepted) {
  const std::string text = serialize(example());
  for (std::size_t at = 0; at < text.size(); ++at) {
    std::string damaged = text;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
    EXPECT_FALSE(parse_record(damaged, "record").has_value()) << at;
    EXPECT_FALSE(parse_record(text.substr(0, at), "record").has_value()) << at;
  }
}

TEST(Record, NamesThatLeaveTheDirectoryAreRefused) {
  for (const char* name : {"../rank-00000.safetensors", "/etc/passwd", "", "..", "a/b", "g0000/../x", "g0000//x",
                           "g0/..", "g0000/index", "g0000/../rank-00000.safetensors"}) {
    expect_corrupt(forged([&](Json& json) { json["files"][0]["name"] = name; }), "leaves the directory");
  }
}

TEST(Record, DigestsMustMatchTheSize) {
  expect_corrupt(forged([](Json& json) { json["files"][0]["size_bytes"] = std::uint64_t{1} << 60; }), "block_digests");
  expect_corrupt(forged([](Json& json) { json["files"][0]["size_bytes"] = UINT64_MAX; }), "block_digests");
  expect_corrupt(forged([](Json& json) { json["files"][1]["block_digests"] = "00"; }), "block_digests");
  expect_corrupt(forged([](Json& json) { json["files"][1]["block_digests"] = "000000000000000g"; }), "hexadecimal");
}

TEST(Record, FieldsMustMakeSense) {
  expect_corrupt(forged([](Json& json) { json["files"] = Json::array(); }), "names no file");
  expect_corrupt(forged([](Json& json) {
                   json["files"][1]["name"] = json["files"][0]["name"];
                   json["files"][1]["size_bytes"] = 1;
                 }),
                 "twice");
  expect_corrupt(forged([](Json& json) { json["rank"] = 2; }), "rank 2 in a world of 2");
  expect_corrupt(forged([](Json& json) { json["attempt"] = std::uint64_t{1} << 32; }), "'attempt'");
  expect_corrupt(forged([](Json& json) { json["step"] = -1; }), "'step'");
  expect_corrupt(forged([](Json& json) { json.erase("run"); }), "'run'");
  expect_corrupt(forged([](Json& json) { json["files"][0] = 5; }), "'block_bytes'");
}

TEST(Record, AnotherFormatOrBlockSizeIsUnsupported) {
  const auto format = parse_record(forged([](Json& json) { json["format"] = 2; }), "record");
  ASSERT_FALSE(format.has_value());
  EXPECT_EQ(format.error().kind, ErrorKind::kUnsupported);
  const auto blocks = parse_record(forged([](Json& json) { json["files"][0]["block_bytes"] = 4096; }), "record");
  ASSERT_FALSE(blocks.has_value());
  EXPECT_EQ(blocks.error().kind, ErrorKind::kUnsupported);
}

}  // namespace
}  // namespace slackwater
