#include "layout/json_reader.hpp"

#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace slackwater {
namespace {

std::optional<std::string> one_string(std::string_view json) {
  JsonReader reader(json);
  std::string value;
  if (!reader.read_string(value) || !reader.finish()) return std::nullopt;
  return value;
}

std::optional<std::uint64_t> one_number(std::string_view json) {
  JsonReader reader(json);
  std::uint64_t value = 0;
  if (!reader.read_u64(value) || !reader.finish()) return std::nullopt;
  return value;
}

std::optional<std::vector<std::int64_t>> one_list(std::string_view json) {
  JsonReader reader(json);
  std::vector<std::int64_t> value;
  if (!reader.read_dimensions(value) || !reader.finish()) return std::nullopt;
  return value;
}

TEST(JsonReader, Strings) {
  EXPECT_EQ(one_string(R"("a\"\\\/\b\f\n\r\tz")"), "a\"\\/\b\f\n\r\tz");
  EXPECT_EQ(one_string(R"("\u00e9\u20AC\ud83c\udf0a")"), "\xc3\xa9\xe2\x82\xac\xf0\x9f\x8c\x8a");
  EXPECT_EQ(one_string(R"("\u0000")"), std::string(1, '\0'));
  EXPECT_EQ(one_string(" \"\" \n"), "");
}

TEST(JsonReader, WrongStringsAreRefused) {
  for (const char* json : {"\"", "\"a", "\"\\", "\"\\x\"", "\"\\u12\"", "\"\\u12g4\"", "\"\\ud800\"", "\"\\ud800x\"",
                           "\"\\ud800\\u0041\"", "\"\\udc00\"", "\"a\nb\"", "\"\xff\"", "\"a\" x", "a", ""}) {
    EXPECT_FALSE(one_string(json).has_value()) << json;
  }
}

TEST(JsonReader, WholeNumbersOnly) {
  EXPECT_EQ(one_number("0"), 0u);
  EXPECT_EQ(one_number("18446744073709551615"), UINT64_MAX);
  for (const char* json : {"18446744073709551616", "01", "-1", "+1", "1.0", "1e3", "1E3", "", "null", "\"1\""}) {
    EXPECT_FALSE(one_number(json).has_value()) << json;
  }
}

TEST(JsonReader, ListsAreStrictAboutCommas) {
  EXPECT_EQ(one_list("[]"), (std::vector<std::int64_t>{}));
  EXPECT_EQ(one_list(" [ 1 , 2 ] "), (std::vector<std::int64_t>{1, 2}));
  for (const char* json : {"[", "[1", "[1,", "[1,]", "[,1]", "[1 2]", "[[1]]", "[1]]", "[9223372036854775808]", "{}"}) {
    EXPECT_FALSE(one_list(json).has_value()) << json;
  }
}

TEST(JsonReader, ObjectsInsideObjects) {
  JsonReader reader(R"({"a":{"x":"1"},"b":{},"c":{"y":"2","z":"3"}})");
  std::string seen, key, value;
  reader.begin_object();
  while (reader.next_key(key)) {
    seen += key + "(";
    std::string inner;
    reader.begin_object();
    while (reader.next_key(inner) && reader.read_string(value)) seen += inner + value;
    seen += ")";
  }
  EXPECT_TRUE(reader.finish()) << reader.trouble();
  EXPECT_EQ(seen, "a(x1)b()c(y2z3)");
}

TEST(JsonReader, TheFirstErrorSticks) {
  JsonReader reader(R"({"a" 1, "b": 2})");
  std::string key;
  std::uint64_t number = 7;
  reader.begin_object();
  EXPECT_FALSE(reader.next_key(key));
  EXPECT_FALSE(reader.next_key(key));
  EXPECT_FALSE(reader.read_u64(number));
  EXPECT_FALSE(reader.finish());
  EXPECT_EQ(number, 7u);
  EXPECT_NE(reader.trouble().find("a colon is expected near byte"), std::string::npos) << reader.trouble();
}

}  // namespace
}  // namespace slackwater
