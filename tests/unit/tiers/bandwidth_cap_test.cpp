#include "tiers/bandwidth_cap.hpp"

#include <chrono>

#include <gtest/gtest.h>

namespace slackwater {
namespace {

using std::chrono::seconds;

TEST(BandwidthCap, BytesAreSpreadOverTime) {
  BandwidthCap cap(100);
  const TimePoint start{seconds(1000)};
  EXPECT_EQ(cap.book(200, start), start) << "the first go at once";
  EXPECT_EQ(cap.book(100, start), start + seconds(2));
  EXPECT_EQ(cap.book(100, start), start + seconds(3));
}

TEST(BandwidthCap, TimeWithoutBytesIsNotSavedUp) {
  BandwidthCap cap(100);
  const TimePoint start{seconds(1000)};
  EXPECT_EQ(cap.book(100, start), start);
  EXPECT_EQ(cap.book(100, start + seconds(60)), start + seconds(60));
  EXPECT_EQ(cap.book(100, start + seconds(60)), start + seconds(61));
}

TEST(BandwidthCap, ZeroIsNoLimit) {
  BandwidthCap cap(0);
  const TimePoint start{seconds(1000)};
  for (int i = 0; i < 3; ++i) EXPECT_EQ(cap.book(1u << 30, start), start);
}

TEST(BandwidthCap, AStopEndsTheWait) {
  BandwidthCap cap(1);
  std::stop_source stop;
  ASSERT_TRUE(cap.wait(1u << 20, stop.get_token()));
  stop.request_stop();
  EXPECT_FALSE(cap.wait(1, stop.get_token())) << "otherwise it sleeps for days";
}

}  // namespace
}  // namespace slackwater
