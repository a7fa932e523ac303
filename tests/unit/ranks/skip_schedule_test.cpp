#include "ranks/skip_schedule.hpp"

#include <vector>

#include <gtest/gtest.h>

namespace slackwater::test {
namespace {

using std::chrono::milliseconds;

TEST(SkipSchedule, AsManyStepsAsMayBeInFlightAreSavedAtTheStart) {
  SkipSchedule turns(2);
  EXPECT_TRUE(turns.take(10, TimePoint()));
  EXPECT_TRUE(turns.take(20, TimePoint()));
  EXPECT_FALSE(turns.take(30, TimePoint()));
}

TEST(SkipSchedule, ATurnBelongsToTheFirstStepFromThereOn) {
  SkipSchedule turns(1);
  EXPECT_TRUE(turns.take(1, TimePoint()));
  EXPECT_FALSE(turns.add(4));
  EXPECT_FALSE(turns.take(2, TimePoint()));
  EXPECT_TRUE(turns.take(6, TimePoint()));
  EXPECT_FALSE(turns.take(7, TimePoint()));
}

TEST(SkipSchedule, ARankThatReceivesATurnTooLateKnowsWhichStepItMissed) {
  SkipSchedule heard(2), late(2);
  for (const std::uint64_t step : {1, 2}) {
    EXPECT_TRUE(heard.take(step, TimePoint()));
    EXPECT_TRUE(late.take(step, TimePoint()));
  }
  EXPECT_FALSE(heard.add(10));
  EXPECT_FALSE(heard.add(11));
  std::vector<std::uint64_t> saved;
  for (const std::uint64_t step : {5, 20, 30, 40}) {
    if (heard.take(step, TimePoint())) saved.push_back(step);
    EXPECT_FALSE(late.take(step, TimePoint()));
  }
  EXPECT_EQ(saved, (std::vector<std::uint64_t>{20, 30}));
  EXPECT_EQ(late.add(10), 20u);
  EXPECT_EQ(late.add(11), 30u);
  EXPECT_EQ(late.add(12), 40u);
  EXPECT_FALSE(late.add(41));
  EXPECT_TRUE(late.take(50, TimePoint()));
}

TEST(SkipSchedule, ANewTurnIsAsFarAheadAsTrainingIsFast) {
  const TimePoint end(std::chrono::hours(1));
  const auto after_steps_of = [&](milliseconds pace, std::uint64_t stride) {  // a hundred, the last one a pace ago
    SkipSchedule turns(1);
    for (int step = 1; step <= 100; ++step) static_cast<void>(turns.take(step * stride, end - (101 - step) * pace));
    return turns;
  };
  EXPECT_EQ(after_steps_of(milliseconds(2000), 1).next(end), 102u) << "not the very next one";
  EXPECT_EQ(after_steps_of(milliseconds(2000), 10).next(end), 1011u);
  EXPECT_EQ(after_steps_of(milliseconds(10), 1).next(end), 126u) << "a quarter of a second";
  SkipSchedule hasty = after_steps_of(milliseconds(10), 1);
  hasty.give_earlier();
  EXPECT_EQ(hasty.next(end), 151u);
  for (int again = 0; again < 100; ++again) hasty.give_earlier();
  EXPECT_EQ(hasty.next(end), 201u) << "there were no more";
}

TEST(SkipSchedule, TurnsAlwaysAscend) {
  SkipSchedule turns(2);
  EXPECT_TRUE(turns.take(1, TimePoint()));
  const std::uint64_t first = turns.next(TimePoint());
  EXPECT_FALSE(turns.add(first));
  EXPECT_GT(turns.next(TimePoint()), first);
}

}  // namespace
}  // namespace slackwater::test
