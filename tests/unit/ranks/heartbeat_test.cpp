#include "ranks/heartbeat.hpp"

#include <algorithm>
#include <functional>
#include <set>
#include <tuple>

#include <gtest/gtest.h>

namespace slackwater::test {
namespace {

using std::chrono::milliseconds;

// The clock of these tests moves by one tick with each poll of a waiting rank.
class TickingClock final : public Clock {
 public:
  [[nodiscard]] TimePoint now() const override { return TimePoint(std::chrono::hours(1)) + elapsed; }
  [[nodiscard]] std::int64_t wall_unix_ms() const override { return 0; }
  milliseconds elapsed{0};
};

// Messages in this process. `meanwhile` runs between two polls.
class OneThreadTransport final : public RankTransport {
 public:
  explicit OneThreadTransport(TickingClock& clock) : clock_(clock) {}

  Result<std::vector<std::string>> rendezvous(const Member&, const Deadline&) override { return {}; }
  Status publish(const Topic& topic, std::uint32_t rank, const Message&) override {
    said_.insert({topic.channel, topic.attempt, topic.step, rank});
    return {};
  }
  Result<bool> await(const Topic& topic, std::vector<std::uint32_t> ranks, const Deadline& deadline,
                     const Take& take) override {
    EXPECT_LE(deadline.at, clock_.now());
    std::erase_if(ranks, [&](std::uint32_t rank) {
      return said_.contains({topic.channel, topic.attempt, topic.step, rank}) && take(rank, Message(Json::object()));
    });
    clock_.elapsed += milliseconds(1);
    meanwhile();
    return ranks.empty();
  }
  std::map<std::uint32_t, std::uint64_t> latest(const Topic& topic, const std::vector<std::uint32_t>& ranks) override {
    std::map<std::uint32_t, std::uint64_t> steps;
    for (const auto& [channel, attempt, step, rank] : said_) {
      if (channel == topic.channel && attempt == topic.attempt && std::ranges::find(ranks, rank) != ranks.end())
        steps[rank] = step;
    }
    return steps;
  }
  void forget(const Topic& topic, std::uint32_t rank) override {
    said_.erase({topic.channel, topic.attempt, topic.step, rank});
  }
  void forget_before(const Topic&) override {}

  [[nodiscard]] std::size_t size() const { return said_.size(); }
  std::function<void()> meanwhile = [] {};

 private:
  TickingClock& clock_;
  std::set<std::tuple<std::string, std::uint32_t, std::uint64_t, std::uint32_t>> said_;
};

class HeartbeatTest : public ::testing::Test {
 protected:
  static constexpr milliseconds kTimeout{40};

  Heartbeat of(std::uint32_t rank, std::uint64_t round = 0) {
    return {transport_,
            clock_,
            {.rank = rank, .timeout = kTimeout, .channel = "restore-heartbeats", .round = round, .on_seen = [this] {
               ++seen_;
             }}};
  }
  // Rank 0 waits for a message of each of these ranks. Returns whether all came; heard_ has those that did.
  bool wait_for(std::vector<std::uint32_t> ranks) {
    const Deadline deadline{clock_.now() + kTimeout, {}};
    const auto heard = leader_.await(kReports, std::move(ranks), deadline, [&](std::uint32_t rank, const Message&) {
      heard_.push_back(rank);
      return true;
    });
    EXPECT_TRUE(heard) << heard.error().to_string();
    return heard.value_or(false);
  }
  [[nodiscard]] milliseconds now() const { return clock_.elapsed; }

  inline static const Topic kReports{"reports", 0, 1};
  TickingClock clock_;
  OneThreadTransport transport_{clock_};
  Heartbeat leader_ = of(0);
  std::vector<std::uint32_t> heard_;
  int seen_ = 0;  // heartbeats of others
};

TEST_F(HeartbeatTest, ShortWorkSendsNoneAndLongWorkOnePerQuarter) {
  Heartbeat member = of(1);
  for (int i = 0; i < 9; ++i) {
    member.note_progress();
    clock_.elapsed += milliseconds(1);
  }
  EXPECT_EQ(transport_.size(), 0u);
  using Steps = std::map<std::uint32_t, std::uint64_t>;
  for (; now() < kTimeout * 10; clock_.elapsed += milliseconds(1)) member.note_progress();
  EXPECT_EQ(transport_.latest({"restore-heartbeats-r00001", 1, 0}, {1}), (Steps{{1, 39}}));
  EXPECT_EQ(transport_.size(), 1u) << "earlier heartbeats are removed";
}

TEST_F(HeartbeatTest, NewWorkSendsNoneInItsFirstQuarterAndOwesNoneFromBefore) {
  Heartbeat member = of(1);
  clock_.elapsed += kTimeout / 4 - milliseconds(1);
  member.note_progress();
  member.begin();
  clock_.elapsed += kTimeout / 4 - milliseconds(1);
  member.send_owed();
  EXPECT_EQ(member.sent(), 0u);
  member.note_progress();
  EXPECT_FALSE(member.due());
  clock_.elapsed += milliseconds(1);
  EXPECT_TRUE(member.due());
  member.send_owed();
  EXPECT_EQ(member.sent(), 1u);
  EXPECT_EQ(transport_.size(), 1u);
  clock_.elapsed += kTimeout;
  member.send_owed();
  EXPECT_EQ(member.sent(), 1u) << "there was no progress";
}

TEST_F(HeartbeatTest, AWithdrawnHeartbeatIsGoneAndNumbersKeepGrowing) {
  Heartbeat member = of(1);
  member.withdraw();
  clock_.elapsed += kTimeout;
  member.note_progress();
  ASSERT_TRUE(leader_.any_new({1}));
  EXPECT_FALSE(leader_.any_new({1}));
  EXPECT_EQ(seen_, 1);
  EXPECT_EQ(leader_.last_seen(1), clock_.now());
  EXPECT_EQ(leader_.last_seen(2), std::nullopt);
  member.withdraw();
  EXPECT_EQ(transport_.size(), 0u);
  EXPECT_FALSE(leader_.any_new({1}));
  clock_.elapsed += kTimeout;
  member.note_progress();
  EXPECT_EQ(member.sent(), 2u);
  EXPECT_TRUE(leader_.any_new({1}));
}

TEST_F(HeartbeatTest, HeartbeatsThatARankReportsAsSentAreNotNew) {
  Heartbeat member = of(1);
  clock_.elapsed += kTimeout;
  member.note_progress();
  leader_.note_sent(1, member.sent());
  EXPECT_FALSE(leader_.any_new({1}));
  EXPECT_EQ(leader_.last_seen(1), std::nullopt) << "it was not seen here";
  clock_.elapsed += kTimeout;
  member.note_progress();
  EXPECT_TRUE(leader_.any_new({1}));
}

TEST_F(HeartbeatTest, ARankThatMakesProgressIsWaitedFor) {
  Heartbeat member = of(1);
  transport_.meanwhile = [&] {
    if (now() < kTimeout * 10) member.note_progress();
    if (now() == kTimeout * 10) static_cast<void>(transport_.publish(kReports, 1, {}));
  };
  EXPECT_TRUE(wait_for({1}));
  EXPECT_EQ(heard_, (std::vector{1u}));
  EXPECT_GE(now(), kTimeout * 10);
}

TEST_F(HeartbeatTest, ARankWithoutAHeartbeatIsGivenUpInTime) {
  EXPECT_FALSE(wait_for({1}));
  EXPECT_LE(now(), kTimeout + milliseconds(1));
}

TEST_F(HeartbeatTest, ARankWithoutProgressIsGivenUpOneTimeoutAfterItsLastHeartbeat) {
  Heartbeat member = of(1);
  transport_.meanwhile = [&] {
    if (now() < kTimeout * 3) member.note_progress();
  };
  EXPECT_FALSE(wait_for({1}));
  EXPECT_GT(now(), kTimeout * 3);
  EXPECT_LT(now(), kTimeout * 5);
}

TEST_F(HeartbeatTest, ADeadRankIsFoundEvenIfAnotherOneIsBusy) {
  Heartbeat busy = of(2);
  ASSERT_TRUE(transport_.publish(kReports, 3, {}));
  transport_.meanwhile = [&] {
    busy.note_progress();
    if (now() == kTimeout * 3) static_cast<void>(transport_.publish(kReports, 2, {}));
  };
  EXPECT_FALSE(wait_for({1, 2, 3}));
  EXPECT_EQ(heard_, (std::vector{3u, 2u}));
}

TEST_F(HeartbeatTest, ARankThatWaitsForABusyOneSendsHeartbeatsToo) {
  Heartbeat member = of(1);
  transport_.meanwhile = [&] {
    if (now() < kTimeout * 2) member.note_progress();
  };
  Heartbeat listener = of(5);
  EXPECT_FALSE(wait_for({1}));
  transport_.meanwhile = [] {};
  const milliseconds before = now();
  const auto told =
      listener.await(kReports, {0}, {clock_.now(), {}}, [](std::uint32_t, const Message&) { return true; });
  ASSERT_TRUE(told);
  EXPECT_FALSE(*told);
  EXPECT_GE(now() - before, kTimeout) << "its time was over already, but the leader had sent a heartbeat meanwhile";
}

// A heartbeat that comes just before a rank may send one is relayed a little later, not with the next heartbeat.
TEST_F(HeartbeatTest, AHeartbeatThatCouldNotBeRelayedAtOnceIsOwed) {
  Heartbeat group_leader = of(2);
  clock_.elapsed += kTimeout / 4;
  group_leader.note_progress();  // the next one not before another quarter
  Heartbeat reader = of(3);
  bool shown = false;
  transport_.meanwhile = [&] {
    if (!shown && now() > kTimeout * 3 / 8) {
      reader.note_progress();
      shown = transport_.latest({"restore-heartbeats-r00003", 1, 0}, {3}).contains(3);
    }
  };
  const auto heard = group_leader.await(kReports, {3}, {clock_.now() + kTimeout, {}},
                                        [](std::uint32_t, const Message&) { return true; });
  ASSERT_TRUE(heard && !*heard);
  ASSERT_TRUE(shown);
  using Steps = std::map<std::uint32_t, std::uint64_t>;
  EXPECT_EQ(transport_.latest({"restore-heartbeats-r00002", 1, 0}, {2}), (Steps{{2, 2}}));
}

TEST_F(HeartbeatTest, ARankWithoutRelaySendsNone) {
  Heartbeat busy = of(0);
  Heartbeat listener = of(5);
  transport_.meanwhile = [&] {
    if (now() < kTimeout * 3) busy.note_progress();
  };
  const auto told = listener.await(
      kReports, {0}, {clock_.now() + kTimeout, {}}, [](std::uint32_t, const Message&) { return true; },
      Heartbeat::Relay::kOff);
  ASSERT_TRUE(told && !*told);
  EXPECT_GT(now(), kTimeout * 3) << "it keeps waiting for the busy rank";
  EXPECT_TRUE(transport_.latest({"restore-heartbeats-r00005", 1, 0}, {5}).empty());
}

TEST_F(HeartbeatTest, HeartbeatsOfAnEarlierRestoreAreIgnored) {
  Heartbeat member = of(1, 0);
  clock_.elapsed += kTimeout;
  member.note_progress();
  Heartbeat later = of(0, 1);
  const milliseconds before = now();
  const auto heard =
      later.await(kReports, {1}, {clock_.now() + kTimeout, {}}, [](std::uint32_t, const Message&) { return true; });
  ASSERT_TRUE(heard);
  EXPECT_FALSE(*heard);
  EXPECT_LE(now() - before, kTimeout + milliseconds(1));
}

TEST_F(HeartbeatTest, AStopEndsTheWait) {
  std::stop_source stop;
  Heartbeat member = of(1);
  transport_.meanwhile = [&] {
    member.note_progress();
    if (now() > kTimeout * 2) stop.request_stop();
  };
  const auto heard = leader_.await(kReports, {1}, {clock_.now() + kTimeout, stop.get_token()},
                                   [](std::uint32_t, const Message&) { return true; });
  ASSERT_FALSE(heard);
  EXPECT_EQ(heard.error().kind, ErrorKind::kClosed);
}

}  // namespace
}  // namespace slackwater::test
