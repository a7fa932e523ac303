#include "tiers/copy_backlog.hpp"

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace slackwater {
namespace {

using std::chrono::milliseconds;

class CopyBacklogTest : public ::testing::Test {
 protected:
  using Steps = std::vector<std::uint64_t>;

  CopyBacklogTest() { backlog_.begin_attempt({.number = 1}, {}); }
  void add(std::initializer_list<std::uint64_t> steps) {
    for (const std::uint64_t step : steps) backlog_.add({step, 1});
  }
  Steps newest_first() {
    Steps steps;
    for (const VersionName& version : backlog_.waiting()) steps.push_back(version.step);
    return steps;
  }
  CopyBacklog::News news() { return backlog_.wait_news({}, milliseconds(0)); }

  int released_ = 0;
  std::vector<std::string> lines_;
  const Log log_{[this](LogLevel, std::string_view line) { lines_.emplace_back(line); }};
  CopyBacklog backlog_{{.location = "/t", .every = 5, .backlog = 2}, "/t", log_, [this] { ++released_; }};
};

TEST_F(CopyBacklogTest, OnlyDueStepsWaitAndTheNewestComesFirst) {
  add({4, 5, 7, 10});
  EXPECT_EQ(newest_first(), (Steps{10, 5}));
  EXPECT_EQ(backlog_.held().size(), 2u);
}

TEST_F(CopyBacklogTest, BeyondTheBoundTheOldestIsSkippedButNotTheOneBeingCopied) {
  add({5});
  backlog_.begin_copy({5, 1});
  add({10, 15, 20});
  EXPECT_EQ(newest_first(), (Steps{20, 15, 5}));
  EXPECT_EQ(backlog_.status().skipped, 1u);
  EXPECT_EQ(backlog_.status().copying, 5u);
  ASSERT_EQ(lines_.size(), 1u);
  EXPECT_NE(lines_[0].find("step 10 will not be copied to /t"), std::string::npos);
}

TEST_F(CopyBacklogTest, FinishingReleasesTheVersion) {
  add({5});
  backlog_.begin_copy({5, 1});
  backlog_.finish({5, 1});
  EXPECT_TRUE(backlog_.held().empty());
  EXPECT_EQ(released_, 1);
  EXPECT_EQ(backlog_.status().newest_step, 5u);
}

TEST_F(CopyBacklogTest, ANewAttemptDropsWhatItDidNotAdopt) {
  add({5, 10});
  backlog_.begin_attempt({.number = 2, .adopted = {{5, 1}}}, 5);
  EXPECT_EQ(newest_first(), Steps{5});
  backlog_.add({15, 1});  // a commit of the old attempt that comes late
  EXPECT_EQ(newest_first(), Steps{5});
  const auto told = news();
  ASSERT_TRUE(told.attempt);
  EXPECT_EQ(told.attempt->number, 2u);
  EXPECT_EQ(told.continued, 5u);
  EXPECT_FALSE(news().attempt) << "told once";
}

TEST_F(CopyBacklogTest, AnErrorIsLoggedOnceUntilItChanges) {
  const Error dead{.kind = ErrorKind::kIo, .message = "no route", .path = "/t"};
  for (int i = 0; i < 3; ++i) backlog_.note_error(dead);
  EXPECT_EQ(lines_.size(), 1u);
  EXPECT_EQ(backlog_.status().errors, 3u);
  EXPECT_NE(backlog_.status().last_error.find("no route"), std::string::npos);
  backlog_.note_success();
  EXPECT_TRUE(backlog_.status().last_error.empty());
  backlog_.note_error(dead);
  EXPECT_EQ(lines_.size(), 3u) << "that it went on, and the error again";
}

TEST_F(CopyBacklogTest, ARefusedTierHoldsNothing) {
  add({5});
  backlog_.refuse({.kind = ErrorKind::kAborted, .message = "another run"});
  EXPECT_TRUE(backlog_.held().empty());
  add({10});
  EXPECT_TRUE(backlog_.held().empty());
  EXPECT_EQ(backlog_.status().skipped, 2u);
}

TEST_F(CopyBacklogTest, BytesOnTheirWayAreProgressUnlessACopyFailed) {
  std::atomic<std::uint64_t> asked{0};
  CopyBacklog backlog({.location = "/t"}, "/t", log_, [] {}, [&asked] { return ++asked; });  // moves whenever asked
  backlog.begin_attempt({.number = 1}, {});
  backlog.add({1, 1});
  std::jthread promoter([&] {
    while (asked < 20) std::this_thread::yield();  // far beyond the limit of 1 ms
    backlog.finish({1, 1});
    static_cast<void>(backlog.wait_news({}, milliseconds(0)));
    static_cast<void>(backlog.pause({}, milliseconds(0)));
  });
  EXPECT_TRUE(backlog.wait_idle({}, milliseconds(1)));
  promoter.join();
  backlog.add({2, 1});
  backlog.note_error({.kind = ErrorKind::kIo, .message = "no route"});
  EXPECT_FALSE(backlog.wait_idle({}, milliseconds(1))) << "a dead tier takes some bytes of every try";
}

TEST_F(CopyBacklogTest, WaitingEndsWhenNothingMoves) {
  static_cast<void>(news());
  EXPECT_FALSE(backlog_.wait_idle({}, milliseconds(1))) << "the promoter is at work";
  EXPECT_TRUE(backlog_.pause({}, milliseconds(0)));
  EXPECT_TRUE(backlog_.wait_idle({}, milliseconds(1)));
  add({5});
  EXPECT_FALSE(backlog_.wait_idle({}, milliseconds(1)));
}

}  // namespace
}  // namespace slackwater
