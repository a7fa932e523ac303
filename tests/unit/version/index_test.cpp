#include "version/index.hpp"

#include <string>

#include <gtest/gtest.h>

#include "base/json.hpp"

namespace slackwater {
namespace {
namespace index_test {  // example: another file that this one may be compiled with has that name too

std::vector<IndexEntry> example() {
  return {
      {"we\"ird\n", DType::kF32, {2, 3}, "", {{{0, 0}, {2, 3}, "rank-00000.safetensors", 4096, 24}}},
      {"scalar", DType::kC128, {}, "", {{{}, {}, "rank-00000-1.safetensors", 8192, 16}}},
      {"tied", DType::kF32, {2, 3}, "we\"ird\n", {}},
      {"split",
       DType::kU8,
       {4, 2},
       "",
       {{{0, 0}, {3, 2}, "rank-00000.safetensors", 5000, 6}, {{3, 0}, {1, 2}, "rank-00001.safetensors", 4096, 2}}},
      {"empty", DType::kU8, {0}, "", {{{0}, {0}, "rank-00000.safetensors", 4096, 0}}},
  };
}

void expect_corrupt(std::string body, std::string_view words, ErrorKind kind = ErrorKind::kCorrupt) {
  const std::string text = seal_json_text(std::move(body));
  const auto entries = parse_index(text, "index");
  ASSERT_FALSE(entries.has_value()) << text;
  EXPECT_EQ(entries.error().kind, kind);
  EXPECT_NE(entries.error().message.find(words), std::string::npos) << entries.error().to_string();
}

// One tensor of two bytes with these members behind its name.
std::string with_entry(const std::string& members, const std::string& file = "f") {
  return R"({"format":1,"files":[")" + file + R"("],"tensors":[{"name":"t",)" + members + "}]";
}

TEST(Index, ComesBackAsItWas) {
  const auto given = example();
  const auto entries = parse_index(serialize_index(given), "index");
  ASSERT_TRUE(entries.has_value()) << entries.error().to_string();
  ASSERT_EQ(entries->size(), given.size());
  for (std::size_t i = 0; i < given.size(); ++i) {
    const IndexEntry& a = given[i];
    const IndexEntry& b = (*entries)[i];
    EXPECT_EQ(a.name, b.name);
    EXPECT_EQ(a.dtype, b.dtype) << a.name;
    EXPECT_EQ(a.shape, b.shape) << a.name;
    EXPECT_EQ(a.alias_of, b.alias_of) << a.name;
    ASSERT_EQ(a.shards.size(), b.shards.size()) << a.name;
    for (std::size_t s = 0; s < a.shards.size(); ++s) {
      EXPECT_EQ(a.shards[s].box_offset, b.shards[s].box_offset) << a.name;
      EXPECT_EQ(a.shards[s].box_shape, b.shards[s].box_shape) << a.name;
      EXPECT_EQ(a.shards[s].file, b.shards[s].file) << a.name;
      EXPECT_EQ(a.shards[s].offset, b.shards[s].offset) << a.name;
      EXPECT_EQ(a.shards[s].size_bytes, b.shards[s].size_bytes) << a.name;
    }
  }
}

TEST(Index, IsSealedJsonThatTheOrdinaryReaderOpens) {
  const auto json = open_sealed_json(serialize_index(example()), "index");
  ASSERT_TRUE(json.has_value()) << json.error().to_string();
  EXPECT_EQ((*json)["tensors"].size(), 5u);
  const auto none = parse_index(serialize_index({}), "index");
  ASSERT_TRUE(none.has_value()) << none.error().to_string();
  EXPECT_TRUE(none->empty());
}

TEST(Index, NoFlippedOrMissingByteIsAccepted) {
  const std::string text = serialize_index(example());
  for (std::size_t at = 0; at < text.size(); ++at) {
    std::string damaged = text;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x04);
    EXPECT_FALSE(parse_index(damaged, "index").has_value()) << at;
    EXPECT_FALSE(parse_index(text.substr(0, at), "index").has_value()) << at;
  }
}

TEST(Index, ForgeriesUnderAGoodDigestAreRefused) {
  const std::string good = R"("dtype":"uint8","shape":[2],"shards":[[0,10,2]])";
  ASSERT_TRUE(parse_index(seal_json_text(with_entry(good)), "index").has_value());
  expect_corrupt(with_entry(good, "../f"), "leaves the directory");
  expect_corrupt(with_entry(good, "g0003/../f"), "leaves the directory");
  expect_corrupt(with_entry(good, "g0003/f"), "leaves the directory");
  EXPECT_TRUE(parse_index(seal_json_text(with_entry(good, "g0003/rank-03072.safetensors")), "index").has_value());
  expect_corrupt(with_entry(R"("dtype":"uint8","shape":[2],"shards":[[1,10,2]])"), "not listed");
  expect_corrupt(with_entry(R"("dtype":"uint8","shape":[2],"shards":[[0,10,3]])"), "do not fit");
  expect_corrupt(with_entry(R"("dtype":"uint8","shape":[2],"shards":[[0,18446744073709551615,2]])"), "do not fit");
  expect_corrupt(with_entry(R"("dtype":"uint8","shape":[2],"shards":[[0,10,2,[1],[2]]])"), "do not fit");
  expect_corrupt(with_entry(R"("dtype":"uint8","shape":[2],"shards":[[0,10,2,[0,0],[2,1]]])"), "do not fit");
  expect_corrupt(with_entry(R"("dtype":"uint8","shape":[2],"shards":[[0,10,2,[0]]])"), "wrong box");
  expect_corrupt(with_entry(R"("dtype":"uint8","shape":[2],"shards":[[0,10]])"), "without a position");
  expect_corrupt(with_entry(R"("dtype":"uint8","shape":[2])"), "neither stored nor tied");
  expect_corrupt(with_entry(R"("dtype":"uint8","shape":[2],"alias_of":"x")"), "not stored");
  expect_corrupt(with_entry(R"("dtype":"uint9","shape":[2],"shards":[])"), "uint9", ErrorKind::kUnsupported);
  expect_corrupt(with_entry(good + R"(,"color":"red")"), "'color'");
  expect_corrupt(R"({"format":2,"anything":{"goes":[]}})", "format 2", ErrorKind::kUnsupported);
  expect_corrupt(R"({"files":[],"tensors":[])", "begin with its format");
  expect_corrupt(R"({"format":1,"files":["f"],"tensors":[{"name":"t",)" + good + R"(},{"name":"t",)" + good + "}]",
                 "'t' twice");
}

}  // namespace index_test
}  // namespace
}  // namespace slackwater
