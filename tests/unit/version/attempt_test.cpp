#include "version/attempt.hpp"

#include <functional>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "base/json.hpp"

namespace slackwater {
namespace {

Attempt example() {
  return {.number = 7,
          .run = "run",
          .run_name = "my \"run\"",
          .world = 2,
          .members = {"a", "b"},
          .adopted = {{40, 5}, {41, 6}},
          .left_behind = {{50, 5}},
          .created_unix_ms = 1'700'000'000'000};
}

std::string forged(const std::function<void(Json&)>& change) {
  Json json = *open_sealed_json(serialize(example()), "attempt-0007.json");
  change(json);
  return seal_json(json);
}

TEST(Attempt, ComesBackAsItWas) {
  const auto attempt = parse_attempt(serialize(example()), "attempt-0007.json");
  ASSERT_TRUE(attempt.has_value()) << attempt.error().to_string();
  EXPECT_EQ(attempt->number, 7u);
  EXPECT_EQ(attempt->run, "run");
  EXPECT_EQ(attempt->run_name, "my \"run\"");
  EXPECT_EQ(attempt->world, 2u);
  EXPECT_EQ(attempt->members, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(attempt->adopted, (std::vector<VersionName>{{40, 5}, {41, 6}}));
  EXPECT_EQ(attempt->left_behind, (std::vector<VersionName>{{50, 5}}));
  EXPECT_EQ(attempt->created_unix_ms, 1'700'000'000'000);
}

TEST(Attempt, ForgeriesAreRefused) {
  const std::vector<std::function<void(Json&)>> changes = {
      [](Json& json) { json["adopted"][0] = "../step-0000000040.a5"; },
      [](Json& json) { json["adopted"][0] = 40; },
      [](Json& json) { json["adopted"][0] = "step-0000000040.a7"; },                                          // its own
      [](Json& json) { json["set_aside"] = {{{"version", "step-0000000040.a7"}, {"why", "a bad block"}}}; },  // its own
      [](Json& json) { json["set_aside"] = {{{"version", "../step-0000000040.a5"}, {"why", "a bad block"}}}; },
      [](Json& json) { json["left_behind"][0] = "step-0000000050.a7"; },  // its own
      [](Json& json) { json["left_behind"][0] = 50; },
      [](Json& json) { json["members"].erase(0); },
      [](Json& json) { json["members"][0] = 1; },
      [](Json& json) { json["world"] = std::uint64_t{1} << 60; },
      [](Json& json) { json.erase("number"); },
  };
  for (std::size_t i = 0; i < changes.size(); ++i) {
    const auto attempt = parse_attempt(forged(changes[i]), "attempt-0007.json");
    ASSERT_FALSE(attempt.has_value()) << i;
    EXPECT_EQ(attempt.error().kind, ErrorKind::kCorrupt) << i;
  }
  const auto newer = parse_attempt(forged([](Json& json) { json["format"] = 9; }), "attempt-0007.json");
  ASSERT_FALSE(newer.has_value());
  EXPECT_EQ(newer.error().kind, ErrorKind::kUnsupported);
}

TEST(Attempt, RandomIdsDiffer) {
  std::set<std::string> ids;
  for (int i = 0; i < 100; ++i) {
    const std::string id = random_id();
    EXPECT_EQ(id.size(), 32u);
    EXPECT_TRUE(ids.insert(id).second);
  }
}

}  // namespace
}  // namespace slackwater
