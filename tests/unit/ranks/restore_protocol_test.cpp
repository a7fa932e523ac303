#include "ranks/restore_protocol.hpp"

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "ranks/key_value_transport.hpp"
#include "support/memory_store.hpp"
#include "support/pause_clock.hpp"

namespace slackwater::test {
namespace {

using Agreement = RestoreProtocol;
using Kind = Agreement::Choice::Kind;
using Verdict = Agreement::Verdict;
using Versions = std::vector<VersionName>;

constexpr std::uint32_t kWorld = 4;
constexpr VersionName kOne{1, 1};
constexpr VersionName kTwo{2, 1};
constexpr VersionName kThree{3, 2};

constexpr std::chrono::seconds kTimeout{60};

// Counts what one rank asks of a store that all share.
class CountingStore final : public KeyValueStore {
 public:
  explicit CountingStore(KeyValueStore& inner) : inner_(inner) {}
  [[nodiscard]] Status set(const std::string& key, const std::string& value) override {
    ++calls_;
    return inner_.set(key, value);
  }
  [[nodiscard]] Result<std::vector<std::optional<std::string>>> get(const std::vector<std::string>& keys) override {
    ++calls_;
    return inner_.get(keys);
  }
  void remove(const std::vector<std::string>& keys) override {
    ++calls_;
    inner_.remove(keys);
  }
  [[nodiscard]] std::uint64_t calls() const { return calls_; }

 private:
  KeyValueStore& inner_;
  std::atomic<std::uint64_t> calls_ = 0;
};

// Four ranks in groups of two, each a thread of its own, which talk through a store. Their clocks move only while they
// pause, as rank 0 does before all list again: no rank is late because the machine is busy.
class RestoreProtocolTest : public ::testing::Test {
 protected:
  struct Rank {
    Rank(MemoryStore& all, FileSystem& fs, std::uint32_t rank)
        : store(all),
          clock([this] { return store.calls(); }, Duration(kTimeout) / 64),
          transport(store, clock, "/runs/gpt"),
          protocol({.rank = rank, .world = kWorld, .fan_in = 2, .timeout = kTimeout}, transport, fs, clock) {}
    CountingStore store;
    PauseClock clock;
    KeyValueTransport transport;
    CommitProtocol protocol;
    RestoreCalls calls;
    std::vector<Result<Agreement::Choice>> choices;  // of the last restore
  };

  RestoreProtocolTest() {
    for (std::uint32_t rank = 0; rank < kWorld; ++rank) ranks_.push_back(std::make_unique<Rank>(store_, *fs_, rank));
    together([](Rank& rank) { ASSERT_TRUE(rank.protocol.rendezvous({})); });
  }
  void together(const std::function<void(Rank&)>& body) {
    std::vector<std::jthread> threads;
    for (const auto& rank : ranks_) threads.emplace_back([&body, &rank] { body(*rank); });
  }
  // What this rank sees in its listing number `look`, counted from 0; and its verdict on a version.
  using See = std::function<Versions(std::uint32_t rank, int look)>;
  using Find = std::function<Verdict(std::uint32_t rank, const VersionName& version)>;
  // A restore by all ranks. Each one lists again and tries as the leader chooses, until the restore ends.
  void restore(const See& see, const Find& find = [](std::uint32_t, const VersionName&) { return Verdict::kGood; }) {
    together([&](Rank& rank) {
      const std::uint32_t number = rank.protocol.options().rank;
      int polls = 0;
      const auto offer = [&] { return Agreement::Offer{.step = {}, .versions = see(number, polls++), .error = {}}; };
      Agreement agreement(rank.protocol, rank.transport, rank.clock, rank.calls);
      rank.choices.clear();
      rank.choices.push_back(agreement.begin(offer()));
      while (rank.choices.back()) {
        const Agreement::Choice& last = *rank.choices.back();
        if (last.kind == Kind::kListAgain) {
          rank.choices.push_back(agreement.list_again(offer()));
        } else if (last.kind == Kind::kTry) {
          const Verdict verdict = find(number, last.version);
          rank.choices.push_back(agreement.next(verdict, {ErrorKind::kCorrupt, "bad bytes", "w", 0, false}));
        } else {
          return;
        }
      }
    });
  }
  // What all ranks received, one choice after the other.
  void expect_told(const std::vector<Kind>& kinds) {
    for (const auto& rank : ranks_) {
      std::vector<Kind> told;
      for (const auto& choice : rank->choices) {
        ASSERT_TRUE(choice) << choice.error().to_string();
        told.push_back(choice->kind);
      }
      EXPECT_EQ(told, kinds) << "rank " << rank->protocol.options().rank;
    }
  }
  void expect_end(Kind kind, const VersionName& version) {
    for (const auto& rank : ranks_) {
      ASSERT_TRUE(rank->choices.back()) << rank->choices.back().error().to_string();
      EXPECT_EQ(rank->choices.back()->kind, kind) << rank->choices.back()->error.to_string();
      EXPECT_EQ(rank->choices.back()->version, version);
    }
  }

  MemoryStore store_;
  std::unique_ptr<FileSystem> fs_ = make_posix_file_system();
  std::vector<std::unique_ptr<Rank>> ranks_;
};

TEST_F(RestoreProtocolTest, TheNewestThatAllSeeIsTriedAndDone) {
  restore([](std::uint32_t, int) { return Versions{kOne, kTwo, kThree}; });
  expect_told({Kind::kTry, Kind::kDone});
  expect_end(Kind::kDone, kThree);
  for (const auto& rank : ranks_) {
    EXPECT_EQ(rank->choices.back()->round, 1u);
    EXPECT_TRUE(rank->choices.back()->passed_over.empty());
    EXPECT_TRUE(rank->choices.front()->unseen.empty());
  }
}

TEST_F(RestoreProtocolTest, IfNoRankSeesAVersionNothingIsRestored) {
  restore([](std::uint32_t, int) { return Versions{}; });
  expect_told({Kind::kNothing});
}

// Without its error it would seem that there is nothing, and all ranks would start from scratch.
TEST_F(RestoreProtocolTest, ARankThatCannotListIsNamedEvenIfTheOthersSeeNothing) {
  together([&](Rank& rank) {
    Agreement agreement(rank.protocol, rank.transport, rank.clock, rank.calls);
    Agreement::Offer offer;
    if (rank.protocol.options().rank == 2) offer.error = Error{ErrorKind::kIo, "the disk does not answer", "/runs/gpt"};
    rank.choices.push_back(agreement.begin(offer));
  });
  expect_told({Kind::kFailed});
  for (const auto& rank : ranks_) {
    EXPECT_EQ(rank->choices.back()->error.kind, ErrorKind::kIo);
    EXPECT_EQ(rank->choices.back()->error.message, "rank 2: the disk does not answer");
  }
}

TEST_F(RestoreProtocolTest, RanksThatAskForDifferentStepsGetAnErrorAndNothingIsRestored) {
  for (const bool leader_differs : {true, false}) {
    together([&](Rank& rank) {
      const bool newest = (rank.protocol.options().rank == 0) == leader_differs;
      Agreement agreement(rank.protocol, rank.transport, rank.clock, rank.calls);
      rank.choices.clear();
      rank.choices.push_back(
          agreement.begin({.step = newest ? std::nullopt : std::optional(kOne.step), .versions = {kOne}, .error = {}}));
    });
    expect_told({Kind::kFailed});
    for (const auto& rank : ranks_) {
      EXPECT_EQ(rank->choices.back()->error.kind, ErrorKind::kInvalidArgument);
      EXPECT_NE(rank->choices.back()->error.message.find("ask for the same on all ranks"), std::string::npos);
    }
  }
}

class WhoSeesTest : public RestoreProtocolTest, public ::testing::WithParamInterface<std::vector<std::uint32_t>> {
 protected:
  static bool sees(std::uint32_t rank) { return std::ranges::find(GetParam(), rank) != GetParam().end(); }
};

INSTANTIATE_TEST_SUITE_P(Ranks, WhoSeesTest,
                         ::testing::Values(std::vector{0u, 1u, 2u}, std::vector{1u, 2u, 3u}, std::vector{0u, 2u},
                                           std::vector{0u}, std::vector{3u}));

TEST_P(WhoSeesTest, AVersionThatOnlySomeSeeIsNeitherTriedNorSkipped) {
  restore([](std::uint32_t rank, int) { return sees(rank) ? Versions{kOne, kTwo, kThree} : Versions{kOne, kTwo}; });
  expect_told({Kind::kListAgain, Kind::kListAgain, Kind::kListAgain, Kind::kFailed});
  std::vector<std::uint32_t> blind;
  for (std::uint32_t rank = 0; rank < kWorld; ++rank) {
    if (!sees(rank)) blind.push_back(rank);
  }
  const std::string words = fmt::format("step 3: only {} of 4 ranks see it, {} {} not", GetParam().size(),
                                        name_ranks(blind), blind.size() == 1 ? "does" : "do");
  for (const auto& rank : ranks_) {
    const Error& error = rank->choices.back()->error;
    EXPECT_EQ(error.kind, ErrorKind::kMismatch);
    EXPECT_TRUE(error.retryable);
    EXPECT_NE(error.message.find(words), std::string::npos) << error.message;
    EXPECT_NE(error.message.find("check that all ranks see the same directory"), std::string::npos) << error.message;
    EXPECT_TRUE(rank->choices.back()->damaged.empty());
    EXPECT_TRUE(rank->choices.back()->passed_over.empty());
  }
}

TEST_P(WhoSeesTest, AVersionThatAllSeeAfterListingAgainIsRestored) {
  restore(
      [](std::uint32_t rank, int look) { return sees(rank) || look == 1 ? Versions{kTwo, kThree} : Versions{kTwo}; });
  expect_told({Kind::kListAgain, Kind::kTry, Kind::kDone});
  expect_end(Kind::kDone, kThree);
}

TEST_P(WhoSeesTest, AnOlderVersionThatOnlySomeSeeIsNoObstacle) {
  restore([](std::uint32_t rank, int) { return sees(rank) ? Versions{kOne, kTwo, kThree} : Versions{kOne, kThree}; });
  expect_told({Kind::kTry, Kind::kDone});
  expect_end(Kind::kDone, kThree);
  ASSERT_EQ(ranks_[0]->choices[0]->unseen.size(), 1u);
  EXPECT_NE(ranks_[0]->choices[0]->unseen[0].find(fmt::format("step 2: only {} of 4 ranks see it", GetParam().size())),
            std::string::npos);
}

// It would be lost when the run goes on from one that is older still.
TEST_P(WhoSeesTest, AVersionThatOnlySomeSeeIsNotSkippedAfterADamagedOne) {
  restore([](std::uint32_t rank, int) { return sees(rank) ? Versions{kOne, kTwo, kThree} : Versions{kOne, kThree}; },
          [](std::uint32_t rank, const VersionName&) { return rank == 1 ? Verdict::kDamaged : Verdict::kGood; });
  expect_told({Kind::kTry, Kind::kListAgain, Kind::kListAgain, Kind::kListAgain, Kind::kFailed});
  for (const auto& rank : ranks_) {
    EXPECT_NE(rank->choices.back()->error.message.find("step 2: only"), std::string::npos);
    EXPECT_EQ(rank->choices.back()->passed_over, Versions{kThree});
  }
}

TEST_F(RestoreProtocolTest, DamagedVersionsAreNamedToAllRanks) {
  restore([](std::uint32_t, int) { return Versions{kOne, kTwo, kThree}; },
          [](std::uint32_t rank, const VersionName& version) {
            return (rank == 2 && version == kThree) || (rank == 3 && version == kTwo) ? Verdict::kDamaged
                                                                                      : Verdict::kGood;
          });
  expect_told({Kind::kTry, Kind::kTry, Kind::kTry, Kind::kDone});
  expect_end(Kind::kDone, kOne);
  for (const auto& rank : ranks_) {
    EXPECT_EQ(rank->choices[0]->passed_over, Versions{});
    EXPECT_EQ(rank->choices[1]->passed_over, Versions{kThree});
    EXPECT_EQ(rank->choices.back()->passed_over, (Versions{kThree, kTwo}));
    ASSERT_EQ(rank->choices.back()->damaged.size(), 2u);
    EXPECT_NE(rank->choices.back()->damaged[0].find("step 3: rank 2: bad bytes"), std::string::npos);
    EXPECT_NE(rank->choices.back()->damaged[1].find("step 2: rank 3: bad bytes"), std::string::npos);
  }
}

TEST_F(RestoreProtocolTest, IfAllVersionsAreDamagedTheRestoreFails) {
  restore([](std::uint32_t, int) { return Versions{kOne, kTwo}; },
          [](std::uint32_t, const VersionName&) { return Verdict::kDamaged; });
  expect_told({Kind::kTry, Kind::kTry, Kind::kFailed});
  for (const auto& rank : ranks_) {
    EXPECT_EQ(rank->choices.back()->error.kind, ErrorKind::kCorrupt);
    EXPECT_EQ(rank->choices.back()->passed_over, (Versions{kTwo, kOne}));
  }
}

// However far the call counts are apart, and whichever rank is ahead: they meet, and are equal afterwards.
TEST_F(RestoreProtocolTest, RanksWithDifferentCallCountsMeet) {
  for (std::uint32_t ahead = 0; ahead < kWorld; ++ahead) {
    ranks_[ahead]->calls.made += 3;
    for (int i = 0; i < 2; ++i) {
      restore([](std::uint32_t, int) { return Versions{kOne}; });
      expect_end(Kind::kDone, kOne);
      for (const auto& rank : ranks_) EXPECT_EQ(rank->choices.back()->round, ranks_[0]->choices.back()->round);
    }
    for (const auto& rank : ranks_) EXPECT_EQ(rank->calls.made, ranks_[0]->calls.made);
  }
}

// Nothing more is said for it.
TEST_F(RestoreProtocolTest, ARestoreTakesOneMessagePerRankAndExchange) {
  const std::size_t before = store_.values().size();
  restore([](std::uint32_t, int) { return Versions{kOne}; });
  std::size_t messages = 0;
  for (const auto& [key, value] : store_.values()) messages += key.find("/last/") == std::string::npos ? 1 : 0;
  // Offers and verdicts of three ranks, two choices of rank 0.
  EXPECT_EQ(messages, before + 8);
}

}  // namespace
}  // namespace slackwater::test
