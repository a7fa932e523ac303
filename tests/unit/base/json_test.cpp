#include "base/json.hpp"

#include <string>

#include <gtest/gtest.h>

#include "base/digest.hpp"

namespace slackwater {
namespace {

std::string trouble(std::string_view text, int max_depth = 32) {
  const auto parsed = parse_json(text, "the/file", max_depth);
  if (parsed) return "accepted";
  EXPECT_EQ(parsed.error().kind, ErrorKind::kCorrupt);
  EXPECT_EQ(parsed.error().path, "the/file");
  return parsed.error().message;
}

TEST(ParseJson, BuildsTheSameValueAsTheLibrary) {
  const std::string text = R"({"a":[1,-2,3.5,null,true,{"b":[],"c":{}},"text \u00e9"],)"
                           R"("big":18446744073709551615,"d":{"e":{"f":[[[]]]}},"z":false})";
  const auto parsed = parse_json(text, "x");
  ASSERT_TRUE(parsed);
  EXPECT_EQ(*parsed, Json::parse(text));
  EXPECT_EQ(*parse_json("7", "x"), Json(7));
  EXPECT_EQ(*parse_json(" [ ] ", "x"), Json::array());
}

TEST(ParseJson, RefusesWhatIsNotJson) {
  for (const std::string_view bad :
       {"", "{", "[1,", "{\"a\"}", "{} {}", "nul", "[1e999]", "{'a':1}", "// x\n{}", "[01]", "\"\\ud800\""}) {
    EXPECT_NE(trouble(bad).find("is not valid JSON near byte"), std::string::npos) << bad;
  }
}

TEST(ParseJson, RefusesInvalidUtf8) {
  EXPECT_NE(trouble("\"\xff\""), "accepted");
  EXPECT_NE(trouble("\"\xc0\xaf\""), "accepted");
  EXPECT_NE(trouble("{\"a\xe2\x28\xa1\":1}"), "accepted");
}

TEST(ParseJson, RefusesANulByteAndWhatHidesBehindIt) {
  EXPECT_NE(trouble(std::string_view("{}\0{}", 5)).find("NUL"), std::string::npos);
}

TEST(ParseJson, RefusesDuplicateKeysAtAnyDepth) {
  EXPECT_EQ(trouble(R"({"a":1,"b":2,"a":3})"), "the text has the key 'a' twice");
  EXPECT_EQ(trouble(R"([{"x":{"k":1,"k":1}}])"), "the text has the key 'k' twice");
  EXPECT_EQ(trouble(R"({"a":{"a":1},"b":{"a":1}})"), "accepted");
}

TEST(ParseJson, BoundsTheDepth) {
  EXPECT_EQ(trouble("[[[]]]", 3), "accepted");
  EXPECT_EQ(trouble("[[[[]]]]", 3), "the text is nested deeper than 3 levels");
  EXPECT_EQ(trouble(std::string(1'000'000, '[')), "the text is nested deeper than 32 levels");
}

TEST(JsonField, GivesWhatItWasAskedForOrNamesTheField) {
  const Json object = {{"n", 5},      {"big", ~std::uint64_t{0}}, {"minus", -1}, {"half", 0.5}, {"s", "x"},
                       {"l", {1, 2}}, {"o", {{"k", 1}}}};
  EXPECT_EQ(json_u64(object, "n", "p").value(), 5u);
  EXPECT_EQ(json_u64(object, "big", "p").value(), ~std::uint64_t{0});
  for (const char* bad : {"minus", "half", "s", "none"}) {
    const auto value = json_u64(object, bad, "p");
    ASSERT_FALSE(value) << bad;
    EXPECT_EQ(value.error().kind, ErrorKind::kCorrupt);
    EXPECT_EQ(value.error().message, std::string("field '") + bad + "' is missing or not a whole number");
  }
  EXPECT_EQ(json_string(object, "s", "p").value(), "x");
  EXPECT_FALSE(json_string(object, "n", "p"));
  EXPECT_EQ((*json_array(object, "l", "p"))->size(), 2u);
  EXPECT_FALSE(json_array(object, "o", "p"));
  EXPECT_TRUE((*json_object(object, "o", "p"))->contains("k"));
  EXPECT_FALSE(json_object(object, "l", "p"));
  EXPECT_FALSE(json_u64(Json::array(), "n", "p"));
}

TEST(SealedJson, OpensToWhatWasSealed) {
  const Json object = {{"step", 42}, {"names", {"a", "b"}}, {"zz", nullptr}};
  const std::string sealed = seal_json(object);
  EXPECT_EQ(*open_sealed_json(sealed, "p"), object);
  EXPECT_TRUE(Json::accept(sealed));
}

TEST(SealedJson, ClosesWithTheDigestOfTheBytesBefore) {
  const std::string sealed = seal_json({{"a", 1}});
  const std::string body = "{\"a\":1";
  EXPECT_EQ(sealed, body + ",\"digest\":\"" + to_hex(digest128(body)) + "\"}\n");
}

TEST(SealedJson, RefusesEveryFlippedBit) {
  const std::string sealed = seal_json({{"step", 42}, {"name", "x"}});
  for (std::size_t bit = 0; bit < sealed.size() * 8; ++bit) {
    std::string damaged = sealed;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ 1 << bit % 8);
    const auto opened = open_sealed_json(damaged, "p");
    ASSERT_FALSE(opened) << bit;
    EXPECT_EQ(opened.error().kind, ErrorKind::kCorrupt);
  }
}

TEST(SealedJson, RefusesEveryTruncationAndAppendedBytes) {
  const std::string sealed = seal_json({{"step", 42}});
  for (std::size_t size = 0; size < sealed.size(); ++size) {
    EXPECT_FALSE(open_sealed_json(std::string_view(sealed).substr(0, size), "p")) << size;
  }
  EXPECT_FALSE(open_sealed_json(sealed + "\n", "p"));
  EXPECT_FALSE(open_sealed_json(sealed + sealed, "p"));
}

TEST(SealedJson, RefusesBytesThatAreSealedButNotAnObject) {
  const auto seal_text = [](const std::string& body) {
    return body + ",\"digest\":\"" + to_hex(digest128(body)) + "\"}\n";
  };
  EXPECT_FALSE(open_sealed_json(seal_text("[1"), "p"));
  EXPECT_FALSE(open_sealed_json(seal_text(R"({"digest":"x")"), "p"));
  EXPECT_TRUE(open_sealed_json(seal_text(R"({"a":1)"), "p"));
}

TEST(SealedJson, KeepsGoingWithTextThatIsNotUtf8) {
  const auto opened = open_sealed_json(seal_json({{"host", "a\xff"}}), "p");
  ASSERT_TRUE(opened);
  EXPECT_EQ((*opened)["host"], "a\xef\xbf\xbd");
}

}  // namespace
}  // namespace slackwater
