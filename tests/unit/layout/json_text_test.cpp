#include "layout/json_text.hpp"

#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace slackwater {
namespace {

TEST(JsonText, EveryByteOfAsciiComesBackThroughAnotherParser) {
  std::string text;
  for (int c = 0; c < 128; ++c) text += static_cast<char>(c);
  text += "h\xc3\xa9llo \xe2\x82\xac \xf0\x9f\x8c\x8a";
  std::string json;
  append_json_string(json, text);
  EXPECT_EQ(nlohmann::json::parse(json).get<std::string>(), text);
}

TEST(JsonText, NestedTextComesBackWhenParsedTwice) {
  std::string inner, outer;
  append_json_string(inner, "a\"b\\c\n\x01");
  append_json_string(outer, inner);
  const auto once = nlohmann::json::parse(outer).get<std::string>();
  EXPECT_EQ(nlohmann::json::parse(once).get<std::string>(), "a\"b\\c\n\x01");
}

TEST(JsonText, NumbersAndDimensions) {
  std::string text;
  append_decimal(text, 0);
  text += ' ';
  append_decimal(text, UINT64_MAX);
  const std::int64_t dimensions[] = {2, 0, INT64_MAX};
  append_dimensions(text, dimensions);
  append_dimensions(text, {});
  EXPECT_EQ(text, "0 18446744073709551615[2,0,9223372036854775807][]");
}

TEST(JsonText, Utf8IsToldFromWhatOnlyLooksLikeIt) {
  EXPECT_TRUE(is_utf8(""));
  EXPECT_TRUE(is_utf8("plain ascii, longer than one word"));
  EXPECT_TRUE(is_utf8("12345678\xc3\xa9"));
  EXPECT_TRUE(is_utf8("\xed\x9f\xbf\xee\x80\x80\xf4\x8f\xbf\xbf"));
  EXPECT_FALSE(is_utf8("\xc3"));              // cut
  EXPECT_FALSE(is_utf8("12345678\xc3"));      // cut after a whole word
  EXPECT_FALSE(is_utf8("\x80"));              // continuation alone
  EXPECT_FALSE(is_utf8("\xc0\xaf"));          // overlong '/'
  EXPECT_FALSE(is_utf8("\xe0\x80\xaf"));      // overlong
  EXPECT_FALSE(is_utf8("\xed\xa0\x80"));      // surrogate
  EXPECT_FALSE(is_utf8("\xf4\x90\x80\x80"));  // beyond U+10FFFF
  EXPECT_FALSE(is_utf8("\xf0\x80\x80\xaf"));  // overlong
  EXPECT_FALSE(is_utf8("\xff"));
}

}  // namespace
}  // namespace slackwater
