#include "formats/tree_node.hpp"

#include <limits>

#include <gtest/gtest.h>

#include "formats/tree_select.hpp"

namespace slackwater::formats {
namespace {

TEST(TreeNode, TextIsReadAndWrittenExactly) {
  const std::string text = R"({"slackwater_tree":1,"state":{"b":[1,-2,1.0,1e-05,0.1,null,true,"é\n"],)"
                           R"("a":{"$t":"w"},"t":{"$":"tuple","v":[]}}})";
  const auto tree = parse_tree(text, "tree");
  ASSERT_TRUE(tree) << tree.error().to_string();
  EXPECT_EQ(tree_text(*tree), text) << "the order of keys stays";
  EXPECT_TRUE(tree->find("a")->is_tensor());
  EXPECT_EQ(tree->find("t")->tag(), "tuple");
}

TEST(TreeNode, LargeNumbersAndOddFloatsAreTyped) {
  std::string out;
  append_node(out, TreeNode::list({TreeNode::integer(kMaxExactInt), TreeNode::integer(kMaxExactInt + 1),
                                   TreeNode::integer(INT64_MIN), TreeNode::floating(-0.0),
                                   TreeNode::floating(std::numeric_limits<double>::infinity())}));
  EXPECT_EQ(out, R"([9007199254740992,{"$":"int","v":"0x20000000000001"},{"$":"int","v":"-0x8000000000000000"},-0.0,)"
                 R"({"$":"float","v":"inf"}])");
}

TEST(TreeNode, DepthIsBounded) {
  std::string text = R"({"slackwater_tree":1,"state":)" + std::string(100'000, '[');
  const auto tree = parse_tree(text, "tree");
  ASSERT_FALSE(tree);
  EXPECT_NE(tree.error().message.find("nested deeper"), std::string::npos);
}

TEST(TreeNode, Base64GoesBothWays) {
  std::string bytes;
  for (int size = 0; size < 20; ++size, bytes += static_cast<char>(37 * size)) {
    std::string again;
    ASSERT_TRUE(from_base64(to_base64(bytes), again));
    EXPECT_EQ(again, bytes);
  }
  std::string again;
  EXPECT_FALSE(from_base64("a?==", again));
  EXPECT_FALSE(from_base64("abc", again));
}

TEST(TreeSelect, OtherKeysGoAndListsKeepTheirPlaces) {
  const auto tree = parse_tree(R"({"slackwater_tree":1,"state":{"m":{"$":"object","of":"module","class":"x","v":)"
                               R"({"a":{"$t":"m.a"},"b":{"$t":"m.b"}}},"l":[1,{"$t":"l.1"}],"n":3}})",
                               "tree");
  ASSERT_TRUE(tree);
  const auto part = select_tree(*tree, Selection({"m.a", "l.1"}, {}));
  ASSERT_TRUE(part);
  std::string out;
  append_node(out, *part);
  EXPECT_EQ(out, R"({"m":{"$":"object","of":"module","class":"x","v":{"a":{"$t":"m.a"}}},"l":[null,{"$t":"l.1"}]})");
  EXPECT_FALSE(select_tree(*tree, Selection({"nothing"}, {})));
}

}  // namespace
}  // namespace slackwater::formats
