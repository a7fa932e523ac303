#include "commit/signs_of_life.hpp"

#include <algorithm>
#include <functional>
#include <set>
#include <tuple>

#include <gtest/gtest.h>

namespace slackwater::test {
namespace {

using std::chrono::milliseconds;

// The clock of these tests moves by one tick with each look of somebody who waits.
class TickingClock final : public Clock {
 public:
  [[nodiscard]] TimePoint now() const override { return TimePoint(std::chrono::hours(1)) + elapsed; }
  [[nodiscard]] std::int64_t wall_unix_ms() const override { return 0; }
  milliseconds elapsed{0};
};

// Messages in this process. Between two looks the world goes on: `meanwhile`.
class OneThreadCoordinator final : public Coordinator {
 public:
  explicit OneThreadCoordinator(TickingClock& clock) : clock_(clock) {}

  Result<std::vector<std::string>> gather(const Member&, const Patience&) override { return {}; }
  Status publish(const Topic& topic, std::uint32_t rank, const Message&) override {
    said_.insert({topic.box, topic.attempt, topic.step, rank});
    return {};
  }
  Result<bool> await(const Topic& topic, std::vector<std::uint32_t> ranks, const Patience& patience,
                     const Take& take) override {
    EXPECT_LE(patience.deadline, clock_.now());
    std::erase_if(ranks, [&](std::uint32_t rank) {
      return said_.contains({topic.box, topic.attempt, topic.step, rank}) && take(rank, Message(Json::object()));
    });
    clock_.elapsed += milliseconds(1);
    meanwhile();
    return ranks.empty();
  }
  std::map<std::uint32_t, std::uint64_t> latest(const Topic& topic, const std::vector<std::uint32_t>& ranks) override {
    std::map<std::uint32_t, std::uint64_t> steps;
    for (const auto& [box, attempt, step, rank] : said_) {
      if (box == topic.box && attempt == topic.attempt && std::ranges::find(ranks, rank) != ranks.end())
        steps[rank] = step;
    }
    return steps;
  }
  void forget(const Topic& topic, std::uint32_t rank) override {
    said_.erase({topic.box, topic.attempt, topic.step, rank});
  }
  void forget_before(const Topic&) override {}

  [[nodiscard]] std::size_t size() const { return said_.size(); }
  std::function<void()> meanwhile = [] {};

 private:
  TickingClock& clock_;
  std::set<std::tuple<std::string, std::uint32_t, std::uint64_t, std::uint32_t>> said_;
};

class SignsOfLifeTest : public ::testing::Test {
 protected:
  static constexpr milliseconds kTimeout{40};

  SignsOfLife of(std::uint32_t rank, std::uint64_t round = 0) {
    return {
        coordinator_,
        clock_,
        {.rank = rank, .timeout = kTimeout, .box = "restore-signs", .round = round, .on_seen = [this] { ++seen_; }}};
  }
  // What a wait of rank 0 for a word of these ranks comes to, and whom it has heard, each once.
  bool wait_for(std::vector<std::uint32_t> ranks) {
    const Patience patience{clock_.now() + kTimeout, {}};
    const auto heard = leader_.await(kWords, std::move(ranks), patience, [&](std::uint32_t rank, const Message&) {
      heard_.push_back(rank);
      return true;
    });
    EXPECT_TRUE(heard) << heard.error().to_string();
    return heard.value_or(false);
  }
  [[nodiscard]] milliseconds now() const { return clock_.elapsed; }

  inline static const Topic kWords{"words", 0, 1};
  TickingClock clock_;
  OneThreadCoordinator coordinator_{clock_};
  SignsOfLife leader_ = of(0);
  std::vector<std::uint32_t> heard_;
  int seen_ = 0;  // heartbeats of others
};

TEST_F(SignsOfLifeTest, WhatIsOverSoonNeedsNoSignAndLaterOneAQuarterIsEnough) {
  SignsOfLife member = of(1);
  for (int i = 0; i < 9; ++i) {
    member.show();
    clock_.elapsed += milliseconds(1);
  }
  EXPECT_EQ(coordinator_.size(), 0u);
  using Steps = std::map<std::uint32_t, std::uint64_t>;
  for (; now() < kTimeout * 10; clock_.elapsed += milliseconds(1)) member.show();
  EXPECT_EQ(coordinator_.latest({"restore-signs-r00001", 1, 0}, {1}), (Steps{{1, 39}}));
  EXPECT_EQ(coordinator_.size(), 1u) << "earlier signs are taken back";
}

TEST_F(SignsOfLifeTest, NewWorkNeedsNoneInItsFirstQuarterEitherAndNoneIsOwedFromBefore) {
  SignsOfLife member = of(1);
  clock_.elapsed += kTimeout / 4 - milliseconds(1);
  member.show();
  member.begin();
  clock_.elapsed += kTimeout / 4 - milliseconds(1);
  member.show_owed();
  EXPECT_EQ(member.sent(), 0u);
  member.show();
  EXPECT_FALSE(member.due());
  clock_.elapsed += milliseconds(1);
  EXPECT_TRUE(member.due());
  member.show_owed();
  EXPECT_EQ(member.sent(), 1u);
  EXPECT_EQ(coordinator_.size(), 1u);
  clock_.elapsed += kTimeout;
  member.show_owed();
  EXPECT_EQ(member.sent(), 1u) << "there was no progress";
}

TEST_F(SignsOfLifeTest, OneThatIsTakenBackIsGoneAndNumbersGrowOn) {
  SignsOfLife member = of(1);
  member.withdraw();
  clock_.elapsed += kTimeout;
  member.show();
  ASSERT_TRUE(leader_.seen_anew({1}));
  EXPECT_FALSE(leader_.seen_anew({1}));
  EXPECT_EQ(seen_, 1);
  EXPECT_EQ(leader_.last_seen(1), clock_.now());
  EXPECT_EQ(leader_.last_seen(2), std::nullopt);
  member.withdraw();
  EXPECT_EQ(coordinator_.size(), 0u);
  EXPECT_FALSE(leader_.seen_anew({1}));
  clock_.elapsed += kTimeout;
  member.show();
  EXPECT_EQ(member.sent(), 2u);
  EXPECT_TRUE(leader_.seen_anew({1}));
}

TEST_F(SignsOfLifeTest, WhatARankSaysItHasSentIsNoNewsAnyMore) {
  SignsOfLife member = of(1);
  clock_.elapsed += kTimeout;
  member.show();
  leader_.note_sent(1, member.sent());
  EXPECT_FALSE(leader_.seen_anew({1}));
  EXPECT_EQ(leader_.last_seen(1), std::nullopt) << "it was not seen here";
  clock_.elapsed += kTimeout;
  member.show();
  EXPECT_TRUE(leader_.seen_anew({1}));
}

TEST_F(SignsOfLifeTest, ARankThatShowsThatItComesFurtherIsWaitedFor) {
  SignsOfLife member = of(1);
  coordinator_.meanwhile = [&] {
    if (now() < kTimeout * 10) member.show();
    if (now() == kTimeout * 10) static_cast<void>(coordinator_.publish(kWords, 1, {}));
  };
  EXPECT_TRUE(wait_for({1}));
  EXPECT_EQ(heard_, (std::vector{1u}));
  EXPECT_GE(now(), kTimeout * 10);
}

TEST_F(SignsOfLifeTest, ARankWithoutASignIsGivenUpInTime) {
  EXPECT_FALSE(wait_for({1}));
  EXPECT_LE(now(), kTimeout + milliseconds(1));
}

TEST_F(SignsOfLifeTest, ARankThatComesNoFurtherIsGivenUpOneTimeoutAfterItsLastSign) {
  SignsOfLife member = of(1);
  coordinator_.meanwhile = [&] {
    if (now() < kTimeout * 3) member.show();
  };
  EXPECT_FALSE(wait_for({1}));
  EXPECT_GT(now(), kTimeout * 3);
  EXPECT_LT(now(), kTimeout * 5);
}

TEST_F(SignsOfLifeTest, WhileOneIsBusyAnotherThatIsGoneIsFoundAloneInTheEnd) {
  SignsOfLife busy = of(2);
  ASSERT_TRUE(coordinator_.publish(kWords, 3, {}));
  coordinator_.meanwhile = [&] {
    busy.show();
    if (now() == kTimeout * 3) static_cast<void>(coordinator_.publish(kWords, 2, {}));
  };
  EXPECT_FALSE(wait_for({1, 2, 3}));
  EXPECT_EQ(heard_, (std::vector{3u, 2u}));
}

TEST_F(SignsOfLifeTest, WhoWaitsForABusyRankGivesSignsToo) {
  SignsOfLife member = of(1);
  coordinator_.meanwhile = [&] {
    if (now() < kTimeout * 2) member.show();
  };
  SignsOfLife listener = of(5);
  EXPECT_FALSE(wait_for({1}));
  coordinator_.meanwhile = [] {};
  const milliseconds before = now();
  const auto told = listener.await(kWords, {0}, {clock_.now(), {}}, [](std::uint32_t, const Message&) { return true; });
  ASSERT_TRUE(told);
  EXPECT_FALSE(*told);
  EXPECT_GE(now() - before, kTimeout) << "its time had run out already, but the leader had given a sign meanwhile";
}

// A sign that comes just before a rank may pass it on is passed on a little later, not with the next one.
TEST_F(SignsOfLifeTest, ASignThatCouldNotBePassedOnAtOnceIsOwed) {
  SignsOfLife speaker = of(2);
  clock_.elapsed += kTimeout / 4;
  speaker.show();  // the next one not before another quarter
  SignsOfLife reader = of(3);
  bool shown = false;
  coordinator_.meanwhile = [&] {
    if (!shown && now() > kTimeout * 3 / 8) {
      reader.show();
      shown = coordinator_.latest({"restore-signs-r00003", 1, 0}, {3}).contains(3);
    }
  };
  const auto heard =
      speaker.await(kWords, {3}, {clock_.now() + kTimeout, {}}, [](std::uint32_t, const Message&) { return true; });
  ASSERT_TRUE(heard && !*heard);
  ASSERT_TRUE(shown);
  using Steps = std::map<std::uint32_t, std::uint64_t>;
  EXPECT_EQ(coordinator_.latest({"restore-signs-r00002", 1, 0}, {2}), (Steps{{2, 2}}));
}

TEST_F(SignsOfLifeTest, WhoOnlyListensGivesNone) {
  SignsOfLife busy = of(0);
  SignsOfLife listener = of(5);
  coordinator_.meanwhile = [&] {
    if (now() < kTimeout * 3) busy.show();
  };
  const auto told =
      listener.listen(kWords, {0}, {clock_.now() + kTimeout, {}}, [](std::uint32_t, const Message&) { return true; });
  ASSERT_TRUE(told && !*told);
  EXPECT_GT(now(), kTimeout * 3) << "it goes on waiting for who is busy";
  EXPECT_TRUE(coordinator_.latest({"restore-signs-r00005", 1, 0}, {5}).empty());
}

TEST_F(SignsOfLifeTest, SignsOfAnEarlierRestoreDoNotCount) {
  SignsOfLife member = of(1, 0);
  clock_.elapsed += kTimeout;
  member.show();
  SignsOfLife later = of(0, 1);
  const milliseconds before = now();
  const auto heard =
      later.await(kWords, {1}, {clock_.now() + kTimeout, {}}, [](std::uint32_t, const Message&) { return true; });
  ASSERT_TRUE(heard);
  EXPECT_FALSE(*heard);
  EXPECT_LE(now() - before, kTimeout + milliseconds(1));
}

TEST_F(SignsOfLifeTest, AStopEndsTheWait) {
  std::stop_source stop;
  SignsOfLife member = of(1);
  coordinator_.meanwhile = [&] {
    member.show();
    if (now() > kTimeout * 2) stop.request_stop();
  };
  const auto heard = leader_.await(kWords, {1}, {clock_.now() + kTimeout, stop.get_token()},
                                   [](std::uint32_t, const Message&) { return true; });
  ASSERT_FALSE(heard);
  EXPECT_EQ(heard.error().kind, ErrorKind::kClosed);
}

}  // namespace
}  // namespace slackwater::test
