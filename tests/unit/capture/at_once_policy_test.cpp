#include "capture/at_once_policy.hpp"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace slackwater {
namespace {

constexpr std::int64_t kMiB = 1 << 20;

// Bytes behind them are never read here.
Tensor tensor(std::string name, std::int64_t size_bytes, Updates updates, bool watched = true) {
  Tensor result;
  result.name = std::move(name);
  result.shape = {size_bytes};
  result.updates = updates;
  result.watched = watched;
  return result;
}

class AtOncePolicy : public ::testing::Test {
 protected:
  std::vector<std::string> choose(State state) {
    std::vector<std::string> names;
    for (const std::uint32_t index : choose_at_once(state, torn_)) {
      EXPECT_TRUE(state.tensors[index].at_once);
      names.push_back(state.tensors[index].name);
    }
    return names;
  }
  using Names = std::vector<std::string>;

  TornTensors torn_;
};

TEST_F(AtOncePolicy, BuffersAndSmallTensorsThatNobodyKnowsAreVolatile) {
  State state;
  state.tensors = {tensor("parameter", 8, Updates::kBehindFence), tensor("buffer", 5000, Updates::kAnyTime),
                   tensor("small", 4096, Updates::kUnknown), tensor("large", 4097, Updates::kUnknown)};
  EXPECT_EQ(choose(state), (Names{"buffer", "small"}));
}

TEST_F(AtOncePolicy, NothingIsChosenThatTheCallerSaysNothingAbout) {
  State state;
  state.tensors.resize(2);
  state.tensors[0].name = "a";
  state.tensors[1].name = "b";
  state.tensors[1].at_once = true;
  EXPECT_EQ(choose(state), Names{"b"});
}

TEST_F(AtOncePolicy, WatchedTensorsBeyondTheRoomWaitAndOthersDoNot) {
  State state;
  state.tensors = {tensor("first", 40 * kMiB, Updates::kAnyTime), tensor("second", 20 * kMiB, Updates::kAnyTime),
                   tensor("small", 100, Updates::kUnknown), tensor("array", 30 * kMiB, Updates::kAnyTime, false)};
  // The array takes its room first, though it comes last.
  EXPECT_EQ(choose(state), (Names{"second", "small", "array"}));
}

TEST_F(AtOncePolicy, OneTornTensorTeachesTheOutermostObject) {
  State state;
  state.tensors = {tensor("ema.shadow.a", kMiB, Updates::kBehindFence), tensor("ema.b", kMiB, Updates::kBehindFence),
                   tensor("ematic.c", kMiB, Updates::kBehindFence), tensor("w", kMiB, Updates::kBehindFence)};
  state.objects = {"ema", "ema.shadow", "ematic", "w"};
  EXPECT_TRUE(choose(state).empty());
  torn_.learn({"ema.shadow.a"});
  EXPECT_EQ(choose(state), (Names{"ema.shadow.a", "ema.b"}));
  const std::vector<std::string> news = torn_.take_news();
  ASSERT_EQ(news.size(), 1u);
  EXPECT_NE(news[0].find("'ema' is updated between save() and the fence (1 of its tensors, such as 'ema.shadow.a')"),
            std::string::npos)
      << news[0];
  torn_.learn({"ema.b"});
  EXPECT_TRUE(torn_.take_news().empty()) << "known already";
}

TEST_F(AtOncePolicy, WithoutObjectsATensorStandsForItself) {
  State state;
  state.tensors = {tensor("m.a", kMiB, Updates::kBehindFence), tensor("m.b", kMiB, Updates::kBehindFence)};
  EXPECT_TRUE(choose(state).empty());
  torn_.learn({"m.a"});
  EXPECT_EQ(choose(state), Names{"m.a"});
}

TEST_F(AtOncePolicy, AVolatileTensorThatHadToWaitTeachesOnlyTheVolatileOnes) {
  State state;
  state.tensors = {tensor("m.weight", kMiB, Updates::kBehindFence), tensor("m.large", 65 * kMiB, Updates::kAnyTime),
                   tensor("m.other", 60 * kMiB, Updates::kAnyTime)};
  state.objects = {"m"};
  EXPECT_EQ(choose(state), Names{"m.other"});
  torn_.learn({"m.large"});
  EXPECT_EQ(choose(state), (Names{"m.large", "m.other"})) << "at any price, and the parameters as before";
}

}  // namespace
}  // namespace slackwater
