#include "base/log.hpp"

#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace slackwater {
namespace {

TEST(Log, HandsFormattedMessagesToTheSink) {
  std::vector<std::pair<LogLevel, std::string>> seen;
  const Log log([&](LogLevel level, std::string_view message) { seen.emplace_back(level, message); });
  log.info("step {}", 4);
  log.warn("slow");
  log.error("{} of {}", 1, 2);
  const std::vector<std::pair<LogLevel, std::string>> expected = {
      {LogLevel::kInfo, "step 4"}, {LogLevel::kWarning, "slow"}, {LogLevel::kError, "1 of 2"}};
  EXPECT_EQ(seen, expected);
}

TEST(Log, WithoutASinkWarningsGoToStderrAndInfoNowhere) {
  testing::internal::CaptureStderr();
  const Log log;
  log.info("quiet");
  log.warn("the disk is slow");
  log.error("the disk is full");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "slackwater: the disk is slow\nslackwater: the disk is full\n");
}

TEST(Log, SurvivesASinkThatThrows) {
  int calls = 0;
  const Log log([&](LogLevel, std::string_view) {
    ++calls;
    throw std::runtime_error("sink");
  });
  log.error("x");
  log.error("y");
  EXPECT_EQ(calls, 2);
}

}  // namespace
}  // namespace slackwater
