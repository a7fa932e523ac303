#include <vector>

#include <gtest/gtest.h>

#include "commit/version_store.hpp"

namespace slackwater {
namespace {

std::vector<VersionInfo> steps(std::initializer_list<std::uint64_t> numbers) {
  std::vector<VersionInfo> versions;
  for (const std::uint64_t step : numbers) versions.push_back({.step = step, .attempt = 1});
  return versions;
}

std::vector<std::uint64_t> expired_steps(const std::vector<VersionInfo>& counting, const RetentionPolicy& policy) {
  std::vector<std::uint64_t> numbers;
  for (const VersionName& name : expired(counting, policy)) numbers.push_back(name.step);
  return numbers;
}

using Steps = std::vector<std::uint64_t>;

TEST(Retention, KeepsTheNewest) {
  EXPECT_EQ(expired_steps(steps({1, 2, 3, 4, 5}), {.keep = 2}), (Steps{1, 2, 3}));
  EXPECT_EQ(expired_steps(steps({1, 2}), {.keep = 2}), Steps{});
  EXPECT_EQ(expired_steps(steps({1}), {.keep = 5}), Steps{});
  EXPECT_EQ(expired_steps({}, {.keep = 1}), Steps{});
}

TEST(Retention, ZeroKeepsAll) { EXPECT_EQ(expired_steps(steps({1, 2, 3}), {.keep = 0, .keep_every = 2}), Steps{}); }

TEST(Retention, KeepEveryKeepsItsMultiplesToo) {
  EXPECT_EQ(expired_steps(steps({0, 5, 10, 12, 20, 25, 26}), {.keep = 1, .keep_every = 10}), (Steps{5, 12, 25}));
}

TEST(Retention, PinnedVersionsStay) {
  auto versions = steps({1, 2, 3, 4});
  versions[1].pinned = true;
  EXPECT_EQ(expired_steps(versions, {.keep = 1}), (Steps{1, 3}));
}

TEST(Retention, TheNewestIsNeverAmongThem) {
  for (std::uint64_t keep = 0; keep < 6; ++keep) {
    for (const std::uint64_t step : expired_steps(steps({3, 6, 9}), {.keep = keep, .keep_every = 4}))
      EXPECT_NE(step, 9u);
  }
}

}  // namespace
}  // namespace slackwater
