#include "cli/json_layout.hpp"

#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cli/text.hpp"

namespace slackwater::cli {
namespace {

std::string lay_out(std::string_view text) {
  std::string result;
  layout_json(text, [&](std::string_view line) { result += std::string(line) + "\n"; });
  return result;
}

TEST(JsonLayout, KeepsShortContainersOnOneLine) {
  EXPECT_EQ(lay_out(R"({"a":[1,2,{"b":null}],"c":"x, y: {"})"), "{\"a\": [1, 2, {\"b\": null}], \"c\": \"x, y: {\"}\n");
  EXPECT_EQ(lay_out("[]"), "[]\n");
  EXPECT_EQ(lay_out("1e400"), "1e400\n");
}

TEST(JsonLayout, IndentsLongContainers) {
  const std::string text = R"({"first":")" + std::string(90, 'x') + R"(","second":[1,2]})";
  EXPECT_EQ(lay_out(text), "{\n  \"first\": \"" + std::string(90, 'x') + "\",\n  \"second\": [1, 2]\n}\n");
}

TEST(JsonLayout, ChangesNothingButSpace) {
  nlohmann::json value;
  for (int i = 0; i < 50; ++i)
    value["key" + std::to_string(i)] = {{"t", i}, {"text", "quote \" backslash \\ tab \t end"}, {"deep", {{{1}}}}};
  EXPECT_EQ(nlohmann::json::parse(lay_out(value.dump())), value);
  EXPECT_EQ(nlohmann::json::parse(lay_out(value.dump(7))), value);
}

TEST(JsonLayout, KeepsNumbersOfAnyLengthAndNestingOfAnyDepth) {
  const std::string huge = "123456789012345678901234567890.10";
  EXPECT_EQ(lay_out(huge), huge + "\n");
  const std::string deep = std::string(5000, '[') + std::string(5000, ']');
  std::string text = lay_out(deep);
  std::erase_if(text, [](char c) { return c == ' ' || c == '\n'; });
  EXPECT_EQ(text, deep);
}

TEST(EscapeControls, LetsTextPassAndStopsWhatDrivesATerminal) {
  EXPECT_EQ(escape_controls("model.wte – größe"), "model.wte – größe");
  EXPECT_EQ(escape_controls("a\x1b[31mb\n\x7f"), "a\\u001b[31mb\\u000a\\u007f");
  EXPECT_EQ(escape_controls("\xc2\x9b"), "\\u009b");
  EXPECT_EQ(escape_controls("\xff\xc0\x80\xed\xa0\x80"), "\\xff\\xc0\\x80\\xed\\xa0\\x80");
  EXPECT_EQ(escape_controls("cut \xe2\x82"), "cut \\xe2\\x82");
}

}  // namespace
}  // namespace slackwater::cli
