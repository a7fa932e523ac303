#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <thread>

#include <gtest/gtest.h>

#include "base/digest.hpp"
#include "ranks/key_value_transport.hpp"
#include "ranks/message_names.hpp"
#include "ranks/rendezvous.hpp"
#include "support/fault_file_system.hpp"
#include "support/memory_store.hpp"
#include "support/rank_storage.hpp"
#include "support/temp_dir.hpp"
#include "version/names.hpp"

namespace slackwater::test {
namespace {

using std::chrono::milliseconds;

// What carries the messages, and how a test reaches past the rank transport to what lies there.
class Carrier {
 public:
  virtual ~Carrier() = default;
  virtual std::unique_ptr<RankTransport> make(const Clock& clock) = 0;  // for another rank
  // The message of rank 0 of session "run-0".
  virtual std::string text(const Topic& topic) = 0;
  virtual void put(const Topic& topic, const std::string& text) = 0;
  virtual bool holds_session(const std::string& id) = 0;
};

enum class Through : std::uint8_t { kStore, kDirectory, kNfs, kFullDisk };

// Over NFS each rank is on a host of its own. On a full disk files can be made, but nothing can be written to them.
class DirectoryCarrier final : public Carrier {
 public:
  explicit DirectoryCarrier(Through through) : through_(through) { std::filesystem::create_directory(control()); }
  std::unique_ptr<RankTransport> make(const Clock& clock) override {
    hosts_.push_back(std::make_unique<RankStorage>(through_ == Through::kNfs));
    FileSystem* fs = &hosts_.back()->fs();
    if (through_ == Through::kFullDisk) {
      full_.push_back(std::make_unique<FaultFileSystem>(*fs));
      full_.back()->fail(FsCall::kWriteAt, ENOSPC, {.times = kAlways});
      fs = full_.back().get();
    }
    return std::make_unique<KeyValueTransport>(*fs, clock, temp_.path());
  }
  std::string text(const Topic& topic) override {
    if (through_ == Through::kFullDisk) return spelled(topic);
    std::ifstream file(path(topic));
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void put(const Topic& topic, const std::string& text) override { std::ofstream(path(topic)) << text; }
  bool holds_session(const std::string& id) override { return std::filesystem::exists(control() + "/session-" + id); }

 private:
  [[nodiscard]] std::string control() const { return temp_ / kControlDirectory; }
  [[nodiscard]] std::string path(const Topic& topic) const {
    return control() + "/session-run-0/" + topic.channel + "/" + std::to_string(topic.attempt) + "." +
           std::to_string(topic.step) + ".0";
  }
  [[nodiscard]] std::string spelled(const Topic& topic) {
    const auto entries = hosts_[0]->fs().list(std::filesystem::path(path(topic)).parent_path()).value();
    for (const DirectoryEntry& entry : entries) {
      const auto piece = parse_name_piece(entry.name);
      if (piece && piece->file == message_file(topic, 0) && piece->completes())
        return spelled_text(entries, *piece).value();
    }
    return "";
  }

  TempDir temp_{TempDir::in_memory()};
  const Through through_;
  std::vector<std::unique_ptr<FaultFileSystem>> full_;
  std::vector<std::unique_ptr<RankStorage>> hosts_;
};

class StoreCarrier final : public Carrier {
 public:
  std::unique_ptr<RankTransport> make(const Clock& clock) override {
    return std::make_unique<KeyValueTransport>(store, clock, "/runs/gpt");
  }
  std::string text(const Topic& topic) override { return store.values()[key(topic)]; }
  void put(const Topic& topic, const std::string& text) override { ASSERT_TRUE(store.set(key(topic), text)); }
  bool holds_session(const std::string& id) override {
    return std::ranges::any_of(store.values(), [&](const auto& each) { return each.first.contains("/" + id + "/"); });
  }
  MemoryStore store;

 private:
  static std::string key(const Topic& topic) {
    return "slackwater/" + to_hex(digest128("/runs/gpt")) + "/run-0/" + topic.channel + "/" +
           std::to_string(topic.attempt) + "." + std::to_string(topic.step) + ".0";
  }
};

std::unique_ptr<Carrier> make_carrier(Through through) {
  if (through == Through::kStore) return std::make_unique<StoreCarrier>();
  return std::make_unique<DirectoryCarrier>(through);
}

class RankTransportTest : public ::testing::TestWithParam<Through> {
 protected:
  [[nodiscard]] Deadline within(int ms) const { return {clock_.now() + milliseconds(ms), {}}; }
  std::unique_ptr<RankTransport> make() { return carrier_->make(clock_); }
  // Rank 0 and rank 1 of a run of two, gathered.
  void rendezvous(RankTransport& leader, RankTransport& member, const std::string& ids) {
    std::jthread other([&] {
      const auto members = member.rendezvous({1, 2, ids + "-1"}, within(120'000));
      ASSERT_TRUE(members) << members.error().to_string();
      EXPECT_EQ(*members, (std::vector{ids + "-0", ids + "-1"}));
    });
    const auto members = leader.rendezvous({0, 2, ids + "-0"}, within(120'000));
    ASSERT_TRUE(members) << members.error().to_string();
  }
  // What rank 1 hears of rank 0 about the topic.
  static Json heard(RankTransport& transport, const Topic& topic, const Deadline& deadline) {
    Json said;
    const auto all = transport.await(topic, {0}, deadline, [&](std::uint32_t, const Message& message) {
      said = message.body;
      return true;
    });
    EXPECT_TRUE(all) << all.error().to_string();
    return said;
  }

  SystemClock clock_;
  std::unique_ptr<Carrier> carrier_ = make_carrier(GetParam());
};

INSTANTIATE_TEST_SUITE_P(Carriers, RankTransportTest,
                         ::testing::Values(Through::kStore, Through::kDirectory, Through::kNfs, Through::kFullDisk),
                         [](const auto& each) {
                           switch (each.param) {
                             case Through::kStore: return "Store";
                             case Through::kDirectory: return "Directory";
                             case Through::kNfs: return "Nfs";
                             case Through::kFullDisk: return "FullDisk";
                           }
                           return "?";
                         });

TEST_P(RankTransportTest, AMessageIsSaidOnceAndHeardWhole) {
  auto leader = make(), member = make();
  rendezvous(*leader, *member, "run");
  const Topic topic{"outcomes", 7, 42};
  ASSERT_TRUE(leader->publish(topic, 0, Message(Json{{"words", "all is well"}})));
  EXPECT_EQ(leader->publish(topic, 0, Message(Json{{"words", "or not"}})).error().kind, ErrorKind::kAlreadyExists);
  EXPECT_EQ(heard(*member, topic, within(120'000))["words"], "all is well");
  EXPECT_TRUE(heard(*member, {"outcomes", 7, 43}, within(20)).is_null());
  leader->forget(topic, 0);
  EXPECT_TRUE(heard(*member, topic, within(20)).is_null());
}

TEST_P(RankTransportTest, WhoListensBeforeAnythingIsSaidHearsItAsSoonAsItIs) {
  auto leader = make(), member = make();
  rendezvous(*leader, *member, "run");
  const Topic topic{"outcomes", 7, 42};
  const auto nothing = [](std::uint32_t, const Message&) { return true; };
  EXPECT_FALSE(
      member->await(topic, {0}, within(0), nothing).value());  // over NFS the channel stays missing if it is asked for
  EXPECT_TRUE(member->latest(topic, {0}).empty());
  member->forget_before(topic);
  ASSERT_TRUE(leader->publish(topic, 0, Message(Json{{"step", 42}})));
  EXPECT_EQ(member->latest(topic, {0}).size(), 1u);
  EXPECT_EQ(heard(*member, topic, within(0))["step"], 42);
  ASSERT_TRUE(leader->publish({"outcomes", 7, 43}, 0, Message(Json{{"step", 43}})));
  EXPECT_EQ(heard(*member, {"outcomes", 7, 43}, within(0))["step"], 43);
}

TEST_P(RankTransportTest, WhatWasSaidEarlierIsForgottenAndTheRestStays) {
  auto leader = make(), member = make();
  rendezvous(*leader, *member, "run");
  for (const std::uint64_t step : {1, 2, 3})
    ASSERT_TRUE(leader->publish({"outcomes", 7, step}, 0, Message(Json{{"step", step}})));
  // A rollback: a newer attempt, and a smaller step.
  ASSERT_TRUE(leader->publish({"outcomes", 8, 1}, 0, Message(Json{{"step", 1}})));
  leader->forget_before({"outcomes", 7, 3});
  EXPECT_TRUE(heard(*member, {"outcomes", 7, 2}, within(20)).is_null());
  EXPECT_EQ(heard(*member, {"outcomes", 8, 1}, within(120'000))["step"], 1);
  EXPECT_EQ(heard(*member, {"outcomes", 7, 3}, within(120'000))["step"], 3);
}

TEST_P(RankTransportTest, WhoSpokeLastAboutWhichStepIsKnown) {
  auto leader = make(), member = make();
  rendezvous(*leader, *member, "run");
  using Steps = std::map<std::uint32_t, std::uint64_t>;
  EXPECT_EQ(leader->latest({"votes-g0000", 7, 1}, {0, 1}), Steps());
  ASSERT_TRUE(member->publish({"votes-g0000", 6, 99}, 1, Message(Json::object())));
  EXPECT_EQ(leader->latest({"votes-g0000", 7, 1}, {0, 1}), Steps()) << "that was another attempt";
  for (const std::uint64_t step : {9, 10})
    ASSERT_TRUE(member->publish({"votes-g0000", 7, step}, 1, Message(Json::object())));
  EXPECT_EQ(leader->latest({"votes-g0000", 7, 1}, {0, 1}), (Steps{{1, 10}}));
  EXPECT_EQ(leader->latest({"votes-g0000", 7, 1}, {0}), Steps());
}

TEST_P(RankTransportTest, ADamagedOrMisplacedMessageIsAnErrorAndNotWaitedFor) {
  auto leader = make(), member = make();
  rendezvous(*leader, *member, "run");
  ASSERT_TRUE(leader->publish({"outcomes", 7, 1}, 0, Message(Json{{"step", 1}})));
  const std::string text = carrier_->text({"outcomes", 7, 1});
  ASSERT_NE(text.find("\"digest\""), std::string::npos);
  carrier_->put({"outcomes", 7, 2}, text);
  carrier_->put({"outcomes", 7, 3}, text.substr(0, text.size() / 2));
  for (const std::uint64_t step : {2, 3}) {
    const auto damaged = member->await({"outcomes", 7, step}, {0}, within(600'000), [](std::uint32_t, const Message&) {
      ADD_FAILURE() << "it was heard";
      return true;
    });
    ASSERT_FALSE(damaged);
    EXPECT_EQ(damaged.error().kind, ErrorKind::kCorrupt) << damaged.error().to_string();
  }
}

TEST_P(RankTransportTest, SessionsOfEarlierStartsAreRemovedAndTheirMembersAreTold) {
  auto leader = make(), zombie = make();
  rendezvous(*leader, *zombie, "old");
  EXPECT_TRUE(carrier_->holds_session("old-0"));
  auto next_leader = make(), next_member = make();
  rendezvous(*next_leader, *next_member, "new");
  EXPECT_FALSE(carrier_->holds_session("old-0"));
  EXPECT_EQ(zombie->publish({"votes-g0000", 1, 1}, 1, Message(Json::object())).error().kind, ErrorKind::kAborted);
  const auto waited =
      zombie->await({"outcomes", 1, 1}, {0}, within(120'000), [](std::uint32_t, const Message&) { return true; });
  EXPECT_EQ(waited.error().kind, ErrorKind::kAborted);
}

TEST_P(RankTransportTest, RanksOfAnotherWorldAreRefused) {
  auto leader = make(), member = make();
  std::jthread other([&] {  // and told so: it need not wait until its time is up
    const auto refused = member->rendezvous({1, 3, "b"}, within(600'000));
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().kind, ErrorKind::kMismatch) << refused.error().to_string();
  });
  const auto gathered = leader->rendezvous({0, 2, "a"}, within(120'000));
  ASSERT_FALSE(gathered);
  EXPECT_EQ(gathered.error().kind, ErrorKind::kMismatch);
}

TEST_P(RankTransportTest, AWaitEndsWhenItIsToldTo) {
  auto leader = make(), member = make();
  rendezvous(*leader, *member, "run");
  std::stop_source stop;
  std::jthread stopper([&] { stop.request_stop(); });
  const auto waited = member->await({"outcomes", 1, 1}, {0}, {clock_.now() + std::chrono::hours(1), stop.get_token()},
                                    [](std::uint32_t, const Message&) { return true; });
  EXPECT_EQ(waited.error().kind, ErrorKind::kClosed);
}

TEST_P(RankTransportTest, ARankThatStartsAgainAloneIsNotTakenIn) {
  auto leader = make(), member = make(), again = make();
  rendezvous(*leader, *member, "run");
  const auto refused = again->rendezvous({1, 2, "another"}, within(50));
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("restart all ranks together"), std::string::npos) << refused.error().message;
  ASSERT_TRUE(leader->publish({"outcomes", 1, 1}, 0, Message(Json{{"step", 1}})));
  EXPECT_EQ(heard(*member, {"outcomes", 1, 1}, within(120'000))["step"], 1);
}

TEST_P(RankTransportTest, RendezvousContinuesWhereATimeOutLeftIt) {
  auto leader = make(), member = make();
  const auto early = leader->rendezvous({0, 2, "run-0"}, within(5));
  ASSERT_FALSE(early);
  EXPECT_EQ(early.error().kind, ErrorKind::kTimeout);
  EXPECT_NE(early.error().message.find("rank 1 of 2"), std::string::npos) << early.error().message;
  rendezvous(*leader, *member, "run");
}

// Space runs out and comes back between two messages, wherever a message needs some.
TEST(DirectoryTransportTest, AMessageThatFindsNoSpaceIsSaidOnceInWhateverForm) {
  for (const FsCall call : {FsCall::kMakeDirectory, FsCall::kOpen, FsCall::kWriteAt, FsCall::kClose, FsCall::kLink}) {
    SCOPED_TRACE(static_cast<int>(call));
    const TempDir temp(TempDir::in_memory());
    std::filesystem::create_directory(temp / kControlDirectory);
    const SystemClock clock;
    const std::unique_ptr<FileSystem> real = make_posix_file_system();
    FaultFileSystem fs(*real);
    KeyValueTransport leader(fs, clock, temp.path());
    ASSERT_TRUE(leader.rendezvous({0, 1, "run-0"}, {clock.now(), {}}));
    const std::string reserve = temp / kControlDirectory + "/reserve";
    ASSERT_TRUE(std::filesystem::exists(reserve));
    const auto say = [&](std::uint64_t step) {
      return leader.publish({"outcomes", 1, step}, 0, Message(Json{{"s", step}}));
    };
    const auto heard = [&](std::uint64_t step) {
      std::uint64_t said = 0;
      const auto take = [&](std::uint32_t, const Message& message) { return said = message.body["s"], true; };
      EXPECT_TRUE(leader.await({"outcomes", 1, step}, {0}, {clock.now(), {}}, take));
      return said;
    };
    fs.fail(call, ENOSPC, {.path = "/outcomes"});
    EXPECT_TRUE(say(1)) << "the reserve serves";
    EXPECT_FALSE(std::filesystem::exists(reserve));
    EXPECT_EQ(heard(1), 1u);
    if (call == FsCall::kMakeDirectory || call == FsCall::kOpen) continue;  // then names cannot be made either
    fs.fail(call, ENOSPC, {.times = 2, .path = "/outcomes"});
    EXPECT_TRUE(say(2)) << "without it names do";
    EXPECT_EQ(heard(2), 2u);
    EXPECT_EQ(say(2).error().kind, ErrorKind::kAlreadyExists);
    EXPECT_EQ(heard(1), 1u);
    leader.forget({"outcomes", 1, 2}, 0);
    EXPECT_EQ(heard(2), 0u);
    EXPECT_TRUE(say(2)) << "it was forgotten";
  }
}

TEST(DirectoryTransportTest, WhereNotEvenNamesCanBeMadeThereIsNoSpaceAndNothingIsLeftBehind) {
  const TempDir temp(TempDir::in_memory());
  std::filesystem::create_directory(temp / kControlDirectory);
  const SystemClock clock;
  const std::unique_ptr<FileSystem> real = make_posix_file_system();
  FaultFileSystem fs(*real);
  KeyValueTransport leader(fs, clock, temp.path());
  ASSERT_TRUE(leader.rendezvous({0, 1, "run-0"}, {clock.now(), {}}));
  fs.fail(FsCall::kWriteAt, ENOSPC, {.times = kAlways});
  fs.fail(FsCall::kOpen, ENOSPC, {.nth = 5, .times = kAlways, .path = "/outcomes"});  // twice a file, two pieces
  const Status said = leader.publish({"outcomes", 1, 1}, 0, Message(Json{{"text", std::string(1000, 'x')}}));
  EXPECT_EQ(said.error().kind, ErrorKind::kNoSpace);
  EXPECT_TRUE(std::filesystem::is_empty(temp / kControlDirectory + "/session-run-0/outcomes"));
}

// On a file system without locks two starts of rank 0 may meet. The older one must not take the newer session away.
TEST(DirectoryTransportTest, ARankZeroWhoseSessionIsGoneEndsAndLeavesTheNewerSessionAlone) {
  const TempDir temp(TempDir::in_memory());
  const std::string control = temp / kControlDirectory;
  std::filesystem::create_directory(control);
  const SystemClock clock;
  const std::unique_ptr<FileSystem> fs = make_posix_file_system();
  KeyValueTransport zombie(*fs, clock, temp.path()), leader(*fs, clock, temp.path());
  EXPECT_EQ(zombie.rendezvous({0, 2, "old"}, {clock.now(), {}}).error().kind, ErrorKind::kTimeout);
  EXPECT_EQ(leader.rendezvous({0, 2, "new"}, {clock.now(), {}}).error().kind, ErrorKind::kTimeout);
  ASSERT_FALSE(std::filesystem::exists(control + "/session-old"));
  EXPECT_EQ(zombie.rendezvous({0, 2, "old"}, {clock.now() + milliseconds(120'000), {}}).error().kind,
            ErrorKind::kAborted);
  EXPECT_TRUE(std::filesystem::exists(control + "/session-new"));
  EXPECT_FALSE(std::filesystem::exists(control + "/session-old"));
}

TEST(DirectoryTransportTest, ARankThatCannotJoinSaysWhy) {
  const TempDir temp(TempDir::in_memory());
  std::filesystem::create_directories(temp / kControlDirectory + "/session-run-0");
  const SystemClock clock;
  const std::unique_ptr<FileSystem> real = make_posix_file_system();
  FaultFileSystem fs(*real);
  fs.fail(FsCall::kMakeDirectory, ENOSPC, {.times = kAlways});
  KeyValueTransport member(fs, clock, temp.path());
  EXPECT_EQ(member.rendezvous({1, 2, "run-1"}, {clock.now(), {}}).error().kind, ErrorKind::kNoSpace);
  fs.clear_faults();
  EXPECT_EQ(member.rendezvous({1, 2, "run-1"}, {clock.now(), {}}).error().kind, ErrorKind::kTimeout);
}

class KeyValueTransportTest : public ::testing::Test {
 protected:
  [[nodiscard]] Deadline within(int ms) const { return {clock_.now() + milliseconds(ms), {}}; }
  std::vector<std::unique_ptr<KeyValueTransport>> rendezvous(std::uint32_t world, const std::string& ids) {
    std::vector<std::unique_ptr<KeyValueTransport>> ranks;
    for (std::uint32_t rank = 0; rank < world; ++rank)
      ranks.push_back(std::make_unique<KeyValueTransport>(store_, clock_, "/runs/gpt"));
    std::vector<std::jthread> threads;
    for (std::uint32_t rank = 0; rank < world; ++rank) {
      threads.emplace_back([&, rank] {
        const auto members = ranks[rank]->rendezvous({rank, world, ids + std::to_string(rank)}, within(120'000));
        EXPECT_TRUE(members) << members.error().to_string();
      });
    }
    return ranks;
  }
  static bool ignore(std::uint32_t, const Message&) { return true; }

  MemoryStore store_;
  SystemClock clock_;
};

TEST_F(KeyValueTransportTest, AStepLeavesNothingBehindOnceTheNextHasEnded) {
  const auto ranks = rendezvous(3, "run");
  std::size_t kept = 0;
  for (std::uint64_t step = 1; step <= 5; ++step) {
    const Topic votes{"votes-g0000", 1, step}, outcomes{"outcomes", 1, step};
    for (const std::uint32_t rank : {1u, 2u})
      ASSERT_TRUE(ranks[rank]->publish(votes, rank, Message(Json{{"step", step}})));
    ASSERT_TRUE(ranks[0]->await(votes, {1, 2}, within(120'000), ignore));
    ASSERT_TRUE(ranks[0]->publish(outcomes, 0, Message(Json{{"step", step}})));
    ranks[0]->forget_before(votes);
    ranks[0]->forget_before(outcomes);
    for (const std::uint32_t rank : {1u, 2u}) {
      ASSERT_TRUE(ranks[rank]->await(outcomes, {0}, within(120'000), ignore));
      ranks[rank]->forget(votes, rank);
    }
    if (step == 1) kept = store_.values().size();
  }
  EXPECT_EQ(store_.values().size(), kept);
}

TEST_F(KeyValueTransportTest, WordsThatCameTooLateGoWithTheNext) {
  const auto ranks = rendezvous(2, "run");
  const std::size_t before = store_.values().size();
  ranks[0]->forget_before({"votes", 1, 2});  // step 1 was given up without rank 1
  ASSERT_TRUE(ranks[1]->publish({"votes", 1, 1}, 1, Message(Json{{"step", 1}})));
  ASSERT_TRUE(ranks[1]->publish({"votes", 1, 2}, 1, Message(Json{{"step", 2}})));
  ranks[1]->forget({"votes", 1, 2}, 1);
  EXPECT_EQ(store_.values().size(), before + 1);  // where it is, one key for ever
}

TEST_F(KeyValueTransportTest, TheLastToLeaveClearsEverythingAway) {
  for (const std::uint32_t world : {2u, 5u, 130u}) {  // the last in three groups
    const auto ranks = rendezvous(world, "run");
    ASSERT_TRUE(ranks[0]->publish({"restore-choices", 0, 0}, 0, Message(Json::object())));
    ASSERT_TRUE(ranks[1]->publish({"restore-offers", 0, 0}, 1, Message(Json::object())));
    for (std::uint32_t rank = 0; rank + 1 < world; ++rank) ranks[rank]->leave();
    // The last one has not heard it yet, and still can.
    const auto heard = ranks[world - 1]->await({"restore-choices", 0, 0}, {0}, within(120'000), ignore);
    EXPECT_TRUE(heard && *heard);
    ranks[world - 1]->leave();
    EXPECT_TRUE(store_.values().empty()) << store_.values().begin()->first;
  }
}

TEST_F(KeyValueTransportTest, OpenedAgainTheRanksGatherAnewWhoeverComesFirst) {
  auto first = rendezvous(3, "first");
  ASSERT_TRUE(first[0]->publish({"outcomes", 1, 1}, 0, Message(Json{{"run", 1}})));
  first[0]->leave();
  first[1]->leave();
  // Rank 2 is still in the session of before when the others come again, and then takes its key away.
  std::vector<std::unique_ptr<KeyValueTransport>> second;
  for (int rank = 0; rank < 3; ++rank)
    second.push_back(std::make_unique<KeyValueTransport>(store_, clock_, "/runs/gpt"));
  EXPECT_FALSE(second[1]->rendezvous({1, 3, "second1"}, within(5)));
  EXPECT_FALSE(second[0]->rendezvous({0, 3, "second0"}, within(5)));
  first[2]->leave();
  std::vector<std::jthread> threads;
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      const auto members = second[rank]->rendezvous({rank, 3, "second" + std::to_string(rank)}, within(120'000));
      ASSERT_TRUE(members) << members.error().to_string();
    });
  }
  threads.clear();
  const auto heard = second[2]->await({"outcomes", 1, 1}, {0}, within(5), ignore);
  EXPECT_TRUE(heard && !*heard) << "that was said in the session before";
  for (const auto& rank : second) rank->leave();
  EXPECT_TRUE(store_.values().empty()) << store_.values().begin()->first;
}

TEST_F(KeyValueTransportTest, TheSessionKeyThatAnEarlierSessionTookAwayIsSetAgain) {
  KeyValueTransport leader(store_, clock_, "/runs/gpt"), member(store_, clock_, "/runs/gpt");
  EXPECT_FALSE(leader.rendezvous({0, 2, "a"}, within(5)));
  ASSERT_EQ(store_.values().size(), 1u);
  store_.remove({store_.values().begin()->first});
  std::jthread other([&] { EXPECT_TRUE(member.rendezvous({1, 2, "b"}, within(120'000))); });
  EXPECT_TRUE(leader.rendezvous({0, 2, "a"}, within(120'000)));
}

TEST(Message, IsTakenWholeOrNotAtAll) {
  const Topic topic{"votes-1-g0000", 1, 2};
  for (const std::string& attachment : {std::string(), std::string("{}\n\0\n", 5)}) {
    const std::string text = seal_message("run", topic, 3, Message(Json{{"step", 2}}, attachment));
    const auto opened = open_message(text, "run", topic, 3, "test");
    ASSERT_TRUE(opened) << opened.error().to_string();
    EXPECT_EQ(opened->attachment, attachment);
    EXPECT_EQ(opened->body, (Json{{"step", 2}}));
    for (std::size_t size = 0; size < text.size(); ++size)
      EXPECT_FALSE(open_message(text.substr(0, size), "run", topic, 3, "test")) << "cut at " << size;
    for (std::size_t at = 0; at < text.size(); ++at) {
      std::string damaged = text;
      damaged[at] ^= 1;
      EXPECT_FALSE(open_message(damaged, "run", topic, 3, "test")) << "damaged at " << at;
    }
    EXPECT_FALSE(open_message(text + "x", "run", topic, 3, "test"));
    EXPECT_FALSE(open_message(text, "another run", topic, 3, "test"));
    EXPECT_FALSE(open_message(text, "run", topic, 4, "test"));
    EXPECT_FALSE(open_message(text, "run", {"votes-1-g0000", 1, 3}, 3, "test"));
  }
}

TEST_F(KeyValueTransportTest, LargeMessagesComeInPiecesAndGoAsOne) {
  const auto ranks = rendezvous(2, "run");
  const std::size_t before = store_.values().size();
  std::string large(5u << 20, 'x');
  large.replace(7, 3, std::string_view("\n\"\0", 3));
  ASSERT_TRUE(ranks[1]->publish({"reports", 1, 1}, 1, Message(Json{{"step", 1}}, large)));
  for (const auto& [key, value] : store_.values()) EXPECT_LE(value.size(), (1u << 20) + 16) << key;
  Message heard;
  const auto all = ranks[0]->await({"reports", 1, 1}, {1}, within(120'000), [&](std::uint32_t, const Message& message) {
    heard = message;
    return true;
  });
  ASSERT_TRUE(all && *all);
  EXPECT_EQ(heard.body, (Json{{"step", 1}}));
  EXPECT_EQ(heard.attachment, large);
  ranks[0]->forget_before({"reports", 1, 2});
  EXPECT_EQ(store_.values().size(), before + 1);  // where rank 1 is
}

// A store of several servers may show the first piece before the last: that is waited for, and no error.
TEST_F(KeyValueTransportTest, AMessageOfWhichAPieceIsNotThereYetIsNotHeardYet) {
  const auto ranks = rendezvous(2, "run");
  ASSERT_TRUE(ranks[1]->publish({"reports", 1, 1}, 1, Message(Json::object(), std::string(3u << 20, 'x'))));
  const auto values = store_.values();
  const auto piece = std::ranges::find_if(values, [](const auto& value) { return value.first.ends_with("#2"); });
  ASSERT_NE(piece, values.end());
  store_.remove({piece->first});
  const auto take = [](std::uint32_t, const Message&) { return true; };
  const auto early = ranks[0]->await({"reports", 1, 1}, {1}, within(0), take);
  ASSERT_TRUE(early) << early.error().to_string();
  EXPECT_FALSE(*early);
  ASSERT_TRUE(store_.set(piece->first, piece->second));
  const auto all = ranks[0]->await({"reports", 1, 1}, {1}, within(120'000), take);
  EXPECT_TRUE(all && *all);
}

TEST_F(KeyValueTransportTest, ABrokenStoreIsAnErrorAtOnceAndOneThatMayRecoverIsAskedAgain) {
  const auto ranks = rendezvous(2, "run");
  store_.breaks(Error{ErrorKind::kIo, "the job is going down", {}, 0, false});
  EXPECT_EQ(ranks[1]->publish({"votes", 1, 1}, 1, Message(Json::object())).error().message, "the job is going down");
  EXPECT_EQ(ranks[0]->await({"votes", 1, 1}, {1}, within(120'000), ignore).error().message, "the job is going down");
  ranks[0]->forget_before({"votes", 1, 1});  // does not mind
  store_.breaks(Error{ErrorKind::kTimeout, "the store is slow", {}, 0, true});
  EXPECT_EQ(ranks[0]->await({"votes", 1, 1}, {1}, within(5), ignore).error().message, "the store is slow");
  std::jthread recovery([&] {
    store_.breaks({});
    EXPECT_TRUE(ranks[1]->publish({"votes", 1, 1}, 1, Message(Json::object())));
  });
  const auto heard = ranks[0]->await({"votes", 1, 1}, {1}, within(120'000), ignore);
  EXPECT_TRUE(heard && *heard);
}

TEST_F(KeyValueTransportTest, CheckpointersOfOtherDirectoriesDoNotMix) {
  const auto ranks = rendezvous(2, "run");
  KeyValueTransport other(store_, clock_, "/runs/other");
  const auto alone = other.rendezvous({1, 2, "other"}, within(5));
  ASSERT_FALSE(alone);
  EXPECT_NE(alone.error().message.find("start all ranks of the run together"), std::string::npos);
}

TEST(Rendezvous, OnlyRanksOfTheSameWorldAndGroupsJoin) {
  const RankTransport::Member leader{0, 4, "leader", 8};
  const auto join = [&](std::uint32_t world, std::uint32_t fan_in) {
    return read_join(join_body({1, world, "member", fan_in}), 1, leader, "here");
  };
  EXPECT_EQ(join(4, 8).value(), "member");
  for (const std::uint32_t world : {3u, 5u}) EXPECT_EQ(join(world, 8).error().kind, ErrorKind::kMismatch) << world;
  for (const std::uint32_t fan_in : {7u, 9u}) EXPECT_EQ(join(4, fan_in).error().kind, ErrorKind::kMismatch) << fan_in;
}

TEST(NameRanks, JoinsNeighboursAndCutsLongLists) {
  EXPECT_EQ(name_ranks({3}), "rank 3");
  EXPECT_EQ(name_ranks({5, 1, 4, 6, 9, 10}), "ranks 1, 4 to 6, 9, 10");
  std::vector<std::uint32_t> odd;
  for (std::uint32_t rank = 1; rank < 40; rank += 2) odd.push_back(rank);
  EXPECT_EQ(name_ranks(odd), "ranks 1, 3, 5, 7, 9, 11, 13, 15 and 12 more");
}

}  // namespace
}  // namespace slackwater::test
