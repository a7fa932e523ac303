// The same patterns mean the same in Python: tests/python/test_names.py compares them.
#include "base/name_pattern.hpp"

#include <string>

#include <gtest/gtest.h>

namespace slackwater {
namespace {

TEST(NamePattern, MeansTheWholeNameOrAPartOfTheStateAndAllBelowIt) {
  EXPECT_TRUE(matches_name("model", "model"));
  EXPECT_TRUE(matches_name("model", "model.0.weight"));
  EXPECT_TRUE(matches_name("model.0", "model.0.weight"));
  EXPECT_TRUE(matches_name("*.0", "model.0.weight"));
  EXPECT_FALSE(matches_name("model", "model2.weight"));
  EXPECT_FALSE(matches_name("model", "net.model"));
  EXPECT_FALSE(matches_name("weight", "model.0.weight"));
  EXPECT_FALSE(matches_name("", "model"));
}

TEST(NamePattern, AStarIsAnyTextAndAQuestionMarkOneCharacter) {
  EXPECT_TRUE(matches_name("model.*.bias", "model.layers.3.bias"));
  EXPECT_TRUE(matches_name("*a*b*c", "xxaxbxbxc"));
  EXPECT_FALSE(matches_name("*a*b*c", "xxaxbxbx"));
  EXPECT_TRUE(matches_name("**", ""));
  EXPECT_TRUE(matches_name("layer?", "layer3"));
  EXPECT_FALSE(matches_name("layer?", "layer33"));
  EXPECT_TRUE(matches_name("m?del",
                           "m\xC3\xB6"
                           "del"))
      << "one character of two bytes";
  EXPECT_FALSE(matches_name("m??del",
                            "m\xC3\xB6"
                            "del"));
  EXPECT_TRUE(matches_name("m?del",
                           "m\xFF"
                           "del"))
      << "a byte that is not UTF-8";
}

TEST(NamePattern, ASetIsOneOfItsCharacters) {
  EXPECT_TRUE(matches_name("layers.[0-3].w", "layers.2.w"));
  EXPECT_FALSE(matches_name("layers.[0-3].w", "layers.4.w"));
  EXPECT_TRUE(matches_name("layers.[!0-3].w", "layers.4.w"));
  EXPECT_TRUE(matches_name("[]a]", "]"));
  EXPECT_TRUE(matches_name("[a-]", "-"));
  EXPECT_TRUE(matches_name("[^a]", "^")) << "not a negation";
  EXPECT_TRUE(matches_name("[a", "[a")) << "nothing closes it";
  EXPECT_FALSE(matches_name("[b-a]", "a")) << "an empty range";
  EXPECT_TRUE(matches_name("[!b-a]", "a"));
  EXPECT_TRUE(matches_name("[[:alpha:]]", ":]")) << "there are no classes";
  EXPECT_FALSE(matches_name("\\*", "*")) << "there are no escapes";
}

TEST(NamePattern, ManyStarsTakeNoLongerThanOne) {
  std::string pattern;
  for (int i = 0; i < 200; ++i) pattern += "*a";
  EXPECT_FALSE(matches_name(pattern + "b", std::string(10'000, 'a')));
}

}  // namespace
}  // namespace slackwater
