#include "layout/name_table.hpp"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace slackwater {
namespace {

TEST(NameTable, FindsEveryNameAndNoOther) {
  std::vector<std::string> names;
  for (int i = 0; i < 5000; ++i) names.push_back("layer." + std::to_string(i));
  NameTable table(names.size(), [&](std::uint32_t index) -> std::string_view { return names[index]; });
  for (std::uint32_t i = 0; i < names.size(); ++i) ASSERT_FALSE(table.insert(i).has_value());
  for (std::uint32_t i = 0; i < names.size(); ++i) ASSERT_EQ(table.find(names[i]), i);
  EXPECT_FALSE(table.find("layer.5000").has_value());
  EXPECT_FALSE(table.find("").has_value());
}

TEST(NameTable, TellsTheFirstOfTwoEqualNames) {
  const std::vector<std::string> names = {"a", "b", "a"};
  NameTable table(names.size(), [&](std::uint32_t index) -> std::string_view { return names[index]; });
  EXPECT_FALSE(table.insert(0).has_value());
  EXPECT_FALSE(table.insert(1).has_value());
  EXPECT_EQ(table.insert(2), 0u);
}

TEST(NameTable, AnEmptyTableFindsNothing) {
  const NameTable table(0, [](std::uint32_t) -> std::string_view { return ""; });
  EXPECT_FALSE(table.find("a").has_value());
}

}  // namespace
}  // namespace slackwater
