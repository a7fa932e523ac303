// Several ranks, each with an engine of its own, in one directory: a version is there on all of them, or on none.
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <thread>

#include "engine/engine_impl.hpp"
#include "support/fault_file_system.hpp"
#include "support/hand_clock.hpp"
#include "support/memory_store.hpp"
#include "support/rank_storage.hpp"
#include "unit/engine/engine_fixture.hpp"
#include "version/catalog.hpp"

namespace slackwater::test {
namespace {

using std::chrono::milliseconds;

constexpr std::uint64_t kNeverSaved = 999'999;  // a step
constexpr milliseconds kShort{80};              // a time-out on a clock that stands still: ranks look around more often

// One rank: its engine, its faults, and tensors that differ from those of the others though they have the same names.
// `clock`: null: the real one.
struct Rank {
  Rank(Options options, unsigned seed, std::unique_ptr<Clock> clock = nullptr)
      : storage(storage_of_host(options.path, options.rank)), model(seed) {
    model.add("w", (1u << 20) + 13 + seed);
    model.add("bias", 100);
    auto faulty = std::make_unique<FaultFileSystem>(storage.fs());
    fs = faulty.get();
    auto opened = open_engine(std::move(options), {.fs = std::move(faulty), .clock = std::move(clock)});
    if (!opened) throw std::runtime_error(opened.error().to_string());
    engine = std::make_unique<Engine>(std::move(*opened));
  }
  // However a test ended: nothing hangs any more, and nobody waits for a clock that stands still.
  ~Rank() {
    if (!engine) return;
    fs->release_hung();
    static_cast<void>(engine->close(std::chrono::seconds(60)));
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  RankStorage& storage;
  Model model;
  FaultFileSystem* fs = nullptr;  // owned by the engine
  std::unique_ptr<Engine> engine;
};

class RanksTest : public EngineTest {
 protected:
  Options rank_options(std::uint32_t rank, std::uint32_t world) {
    Options options = EngineTest::options();
    options.rank = rank;
    options.world = world;
    options.fan_in = 2;
    options.commit_timeout = milliseconds(60'000);
    return options;
  }
  using Change = std::function<void(Options&)>;
  void start(std::uint32_t world, const Change& change = [](Options&) {}) {
    ranks_.clear();
    for (std::uint32_t rank = 0; rank < world; ++rank) {
      Options options = rank_options(rank, world);
      change(options);
      ranks_.push_back(std::make_unique<Rank>(std::move(options), ++seed_));
    }
  }
  // On a clock that stands still until the test moves it, so no rank reaches its deadline because the machine is busy.
  void start_without_time(std::uint32_t world, const Change& change = [](Options&) {}) {
    ranks_.clear();
    for (std::uint32_t rank = 0; rank < world; ++rank) ranks_.push_back(rank_without_time(rank, world, change));
  }
  std::unique_ptr<Rank> rank_without_time(
      std::uint32_t rank, std::uint32_t world, const Change& change = [](Options&) {}) {
    Options options = rank_options(rank, world);
    options.commit_timeout = kShort;
    change(options);
    return std::make_unique<Rank>(std::move(options), ++seed_, std::make_unique<HandClock>(moved_ns_));
  }
  void pass(std::chrono::nanoseconds time) { moved_ns_ += time.count(); }
  static void until(const std::function<bool()>& condition) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (!condition()) {
      if (std::chrono::steady_clock::now() > deadline) {
        ADD_FAILURE() << "it hangs";
        return;
      }
      std::this_thread::sleep_for(milliseconds(1));
    }
  }
  static bool ended(const Snapshot& snapshot) {
    return snapshot.error() || snapshot.progress().level == Level::kCommitted;
  }
  // Until each of these ranks has looked for messages of the others some more times, or its snapshot has ended. Whoever
  // looks, waits. Whoever has looked since the clock was moved, knows.
  void until_polled(const std::vector<std::uint32_t>& ranks, const std::vector<Snapshot>& snapshots) {
    constexpr std::uint64_t kLists = 32;  // directories: a look around lists several
    std::map<std::uint32_t, std::uint64_t> enough;
    for (const std::uint32_t rank : ranks) enough[rank] = ranks_[rank]->fs->count(FsCall::kList) + kLists;
    for (const std::uint32_t rank : ranks)
      until([&] { return ended(snapshots[rank]) || ranks_[rank]->fs->count(FsCall::kList) >= enough[rank]; });
  }
  // Time passes until this snapshot has ended: first as much as any rank waits, then in small parts. Before each part,
  // all of these ranks have seen the effect of the last one, and how the others reacted.
  void pass_until_ended(std::uint32_t rank, const std::vector<std::uint32_t>& ranks,
                        const std::vector<Snapshot>& snapshots) {
    pass(kShort * 9 / 10);
    for (int parts = 0; parts < 100 && !ended(snapshots[rank]); ++parts) {
      until_polled(ranks, snapshots);
      until_polled(ranks, snapshots);
      pass(kShort / 20);
    }
    EXPECT_TRUE(ended(snapshots[rank])) << "rank " << rank << " does not reach its deadline";
  }
  // The same where nobody competes with this rank.
  Status end_of(Snapshot snapshot) {
    until([&] {
      pass(kShort / 20);
      return ended(snapshot);
    });
    return snapshot.wait(Level::kCommitted, milliseconds(0));
  }
  std::vector<Snapshot> save_all(std::uint64_t step) {
    std::vector<Snapshot> snapshots;
    for (const auto& rank : ranks_) snapshots.push_back(save(*rank->engine, step, rank->model));
    return snapshots;
  }
  static std::vector<Status> outcomes(std::vector<Snapshot> snapshots) {
    std::vector<Status> statuses;
    for (Snapshot& snapshot : snapshots) statuses.push_back(snapshot.wait(Level::kCommitted));
    return statuses;
  }
  void commit_all(std::uint64_t step) {
    for (const Status& status : outcomes(save_all(step))) ASSERT_TRUE(status) << status.error().to_string();
  }
  // Runs for all ranks at once, as restore() needs it.
  void together(const std::function<void(std::uint32_t)>& body) {
    std::vector<std::jthread> threads;
    for (std::uint32_t rank = 0; rank < ranks_.size(); ++rank) threads.emplace_back([&body, rank] { body(rank); });
  }
  struct Outcome {
    Result<std::optional<Restored>> result = std::optional<Restored>();
    Reader reader;
  };
  std::vector<Outcome> restore_all(std::optional<std::uint64_t> step = {}) {
    std::vector<Outcome> outcomes(ranks_.size());
    together([&](std::uint32_t rank) {
      Outcome& outcome = outcomes[rank];
      outcome.result = ranks_[rank]->engine->restore({.step = step}, outcome.reader.plan());
    });
    return outcomes;
  }
  void expect_same_abort(const std::vector<Status>& statuses, const std::string& words) {
    for (const Status& status : statuses) {
      ASSERT_FALSE(status);
      EXPECT_EQ(status.error().kind, ErrorKind::kAborted);
      EXPECT_EQ(status.error().message, statuses[0].error().message);
    }
    EXPECT_NE(statuses[0].error().message.find(words), std::string::npos) << statuses[0].error().message;
  }
  // `witness`: who is seen to give the step up before the late one goes on.
  void expect_late_rank_named(std::uint32_t world, std::uint32_t late, std::uint32_t witness) {
    start_without_time(world);
    commit_all(1);
    ranks_[late]->fs->hang(FsCall::kSyncData, {.path = "safetensors"});
    std::vector<Snapshot> snapshots = save_all(2);
    std::vector<std::uint32_t> others;
    for (std::uint32_t rank = 0; rank < world; ++rank) {
      if (rank == late) continue;
      others.push_back(rank);
      ASSERT_TRUE(snapshots[rank].wait(Level::kDurable));
    }
    ranks_[late]->fs->wait_hung(1);
    until_polled(others, snapshots);  // all wait now, and since the same moment
    pass_until_ended(witness, others, snapshots);
    ASSERT_FALSE(snapshots[witness].wait(Level::kCommitted));
    ranks_[late]->fs->release_hung();
    expect_same_abort(outcomes(std::move(snapshots)), fmt::format("rank {}: did not report within", late));
    commit_all(3);
    EXPECT_EQ(steps_on_disk(), (std::vector<std::uint64_t>{1, 3}));
  }
  // Rank 0 deletes in the background, and remove() waits for that.
  void settle() {
    static_cast<void>(ranks_[0]->engine->wait(Level::kCommitted));
    EXPECT_EQ(ranks_[0]->engine->remove(kNeverSaved).error().kind, ErrorKind::kNotFound);
  }
  [[nodiscard]] std::vector<std::uint64_t> steps_on_disk() {
    settle();
    std::vector<std::uint64_t> steps;
    const auto versions = list_versions(options().path);
    for (const VersionInfo& version : versions.value()) steps.push_back(version.step);
    return steps;
  }
  void damage(std::uint64_t step, const std::string& file) {
    const auto versions = list_versions(options().path);
    for (const VersionInfo& version : versions.value()) {
      if (version.step != step) continue;
      std::fstream stream(options().path + "/" + version.directory + "/" + file,
                          std::ios::in | std::ios::out | std::ios::binary);
      stream.seekp(9000);
      stream.write("damage", 6);
      ASSERT_TRUE(stream.good());
    }
  }

  std::atomic<std::int64_t> moved_ns_{0};     // of the clock that stands still
  std::vector<std::unique_ptr<Rank>> ranks_;  // ended before the clock
  unsigned seed_ = 0;
};

using Steps = std::vector<std::uint64_t>;

class WorldTest : public RanksTest, public ::testing::WithParamInterface<std::uint32_t> {};

TEST_P(WorldTest, EveryRankGetsItsOwnTensorsOfTheNewestCommonVersionBack) {
  const std::uint32_t world = GetParam();
  start(world);
  std::vector<std::map<std::string, Bytes>> saved;
  for (std::uint64_t step = 1; step <= 3; ++step) {
    saved.clear();
    for (const auto& rank : ranks_) {
      rank->model.update();
      saved.push_back(rank->model.copy());
    }
    commit_all(step);
  }
  for (const auto& rank : ranks_) EXPECT_EQ(steps(*rank->engine).back(), 3u);

  start(world);
  const std::vector<Outcome> restored = restore_all();
  for (std::uint32_t rank = 0; rank < world; ++rank) {
    ASSERT_TRUE(restored[rank].result) << restored[rank].result.error().to_string();
    ASSERT_TRUE(*restored[rank].result);
    EXPECT_EQ((*restored[rank].result)->version.step, 3u);
    EXPECT_EQ((*restored[rank].result)->version.world, world);
    EXPECT_EQ(restored[rank].reader.read, saved[rank]) << "rank " << rank;
  }
  commit_all(4);
  EXPECT_EQ(steps_on_disk(), (Steps{3, 4}));  // keep=2, by rank 0
}

INSTANTIATE_TEST_SUITE_P(Ranks, WorldTest, ::testing::Values(2u, 4u, 9u));

TEST_F(RanksTest, ReadersSeeTheTensorsOfAllRanksUnderNamesOfTheirOwn) {
  start(3);
  commit_all(1);
  auto checkpoint = Checkpoint::open(options().path);
  ASSERT_TRUE(checkpoint) << checkpoint.error().to_string();
  EXPECT_EQ(checkpoint->version().world, 3u);
  EXPECT_EQ(checkpoint->files().size(), 3u);
  EXPECT_EQ(checkpoint->tensors().size(), 6u);
  const TensorInfo* const found = checkpoint->find("rank-00002/w");
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(checkpoint->files()[found->file].name, "rank-00002.safetensors");
  Bytes bytes(found->size_bytes);
  ASSERT_TRUE(checkpoint->read(
      std::vector{Target{.name = found->name, .dtype = found->dtype, .shape = found->shape, .data = bytes.data()}}));
  EXPECT_EQ(bytes, ranks_[2]->model["w"]);
  const auto report = checkpoint->verify();
  ASSERT_TRUE(report);
  EXPECT_TRUE(report->damages.empty()) << report->damages[0].what;
}

TEST_F(RanksTest, AnErrorOnOneRankAbortsTheStepOnAllAndTheNextCommits) {
  start(9);
  commit_all(1);
  for (const std::uint32_t failing : {5u, 4u, 0u}) {  // a member, the group leader of its group, the leader
    const std::uint64_t step = steps(*ranks_[0]->engine).back() + 1;
    ranks_[failing]->fs->fail(FsCall::kSyncData, EIO, {.path = "safetensors"});
    std::vector<Status> statuses = outcomes(save_all(step));
    const Status own = statuses[failing];
    ASSERT_FALSE(own);
    EXPECT_EQ(own.error().kind, ErrorKind::kIo);
    statuses.erase(statuses.begin() + failing);
    expect_same_abort(statuses, "rank " + std::to_string(failing) + ": ");
    EXPECT_NE(statuses[0].error().message.find("injected fault"), std::string::npos);
    commit_all(step + 1);
  }
  EXPECT_EQ(steps_on_disk(), (Steps{5, 7}));
  for (const auto& entry : std::filesystem::directory_iterator(options().path))
    EXPECT_EQ(entry.path().string().find("step-0000000006"), std::string::npos) << "debris: " << entry.path();
}

TEST_F(RanksTest, ALateRankIsNamedAndLearnsItsFate) { expect_late_rank_named(4, 3, 0); }

// Of nine ranks in groups of two, rank 4 speaks for 4 to 7, and hears 6, who hears 7.
TEST_F(RanksTest, ALateLeaderOfGroupLeadersIsNamedByWhoWaitsForIt) { expect_late_rank_named(9, 4, 8); }

// Between its vote and the decision a rank's record comes to hold other bytes: a commit would name what is not there.
TEST_F(RanksTest, ARecordThatIsNotTheOneVotedForAbortsTheStep) {
  start_without_time(2);
  commit_all(1);
  ranks_[1]->fs->hang(FsCall::kSyncDirectory, {.path = "step-0000000002"});
  std::vector<Snapshot> snapshots = save_all(2);
  ranks_[1]->fs->wait_hung(1);  // its record is written, its vote is still to come
  const std::string record = options().path + "/step-0000000002.a1/rank-00001.record";
  ASSERT_TRUE(std::filesystem::exists(record));
  {
    std::fstream stream(record, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekp(30);
    stream.write("?", 1);
    ASSERT_TRUE(stream.good());
  }
  ranks_[1]->fs->release_hung();
  ASSERT_TRUE(snapshots[1].wait(Level::kDurable));
  until_polled({1, 0}, snapshots);  // rank 1 waits for the outcome, and rank 0 for the record that it voted for
  pass_until_ended(0, {0, 1}, snapshots);
  expect_same_abort(outcomes(std::move(snapshots)), "rank 1: its record, as rank 0 finds it, is not the one it wrote");
  commit_all(3);
  EXPECT_EQ(steps_on_disk(), (std::vector<std::uint64_t>{1, 3}));
}

TEST_F(RanksTest, RanksInOtherGroupsAreToldSoBeforeAnythingIsSaved) {
  start(3, [](Options& options) {
    if (options.rank == 2) options.fan_in = 3;
  });
  for (const Status& status : outcomes(save_all(1))) {
    ASSERT_FALSE(status);
    EXPECT_NE(status.error().message.find("rank 2 has fan_in 3, rank 0 has 2; set the same on all ranks"),
              std::string::npos)
        << status.error().message;
  }
}

TEST_F(RanksTest, ARankThatSavesAnotherStepIsNamedAndMeetsTheOthersAgain) {
  start_without_time(3);
  commit_all(1);
  std::vector<Snapshot> snapshots;
  for (std::uint32_t rank = 0; rank < 3; ++rank)
    snapshots.push_back(save(*ranks_[rank]->engine, rank == 1 ? 3 : 2, ranks_[rank]->model));
  const Snapshot astray = snapshots[1];
  snapshots.erase(snapshots.begin() + 1);
  expect_same_abort(outcomes(std::move(snapshots)), "rank 1: saved step 3 instead");
  const Status alone = end_of(astray);
  ASSERT_FALSE(alone);
  EXPECT_EQ(alone.error().kind, ErrorKind::kAborted);
  commit_all(4);
  EXPECT_EQ(steps_on_disk(), (Steps{1, 4}));
}

TEST_F(RanksTest, WithoutALeaderNobodyHangsAndNothingCommits) {
  start_without_time(3);
  commit_all(1);
  ranks_[0]->engine.reset();
  const Status first = end_of(save(*ranks_[1]->engine, 2, ranks_[1]->model));
  ASSERT_FALSE(first);
  EXPECT_EQ(first.error().kind, ErrorKind::kAborted);
  EXPECT_NE(first.error().message.find("rank 0 had not decided"), std::string::npos) << first.error().message;
  const Status second = end_of(save(*ranks_[2]->engine, 2, ranks_[2]->model));
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().message, first.error().message);  // one decision
}

TEST_F(RanksTest, AbortedStepsGiveTheirSpaceBackAtOnce) {
  start(2);
  commit_all(1);
  ranks_[1]->fs->fail(FsCall::kSyncData, ENOSPC, {.path = "safetensors"});
  for (const Status& status : outcomes(save_all(2))) EXPECT_FALSE(status);
  for (const auto& rank : ranks_) static_cast<void>(rank->engine->wait(Level::kCommitted));
  for (const auto& entry : std::filesystem::recursive_directory_iterator(options().path + "/step-0000000002.a1"))
    EXPECT_EQ(entry.path().filename(), "manifest.json");
}

TEST_F(RanksTest, ADecisionThatIsThereAlreadyIsObeyedByTheLeader) {
  start_without_time(3, [](Options& options) {
    if (options.rank != 1) options.commit_timeout = milliseconds(60'000);
  });
  commit_all(1);
  ranks_[2]->fs->hang(FsCall::kSyncData, {.path = "safetensors"});
  std::vector<Snapshot> snapshots = save_all(2);
  ASSERT_TRUE(snapshots[1].wait(Level::kDurable));
  until_polled({1}, snapshots);                        // it waits for the outcome
  pass(kShort * 2);                                    // too long for rank 1, and for no other
  ASSERT_FALSE(snapshots[1].wait(Level::kCommitted));  // it has published the abort
  ranks_[2]->fs->release_hung();                       // now everybody votes for a commit
  expect_same_abort(outcomes(std::move(snapshots)), "when the deadline of rank 1 passed");
  commit_all(3);
}

TEST_F(RanksTest, AZombieOfAnEarlierAttemptHarmsNothing) {
  start(2);
  commit_all(1);
  std::unique_ptr<Rank> zombie = std::move(ranks_[1]);
  start(2);  // ends the old leader; rank 1 of the old run lives on
  for (const Outcome& restored : restore_all()) ASSERT_TRUE(restored.result && *restored.result);
  commit_all(2);
  ASSERT_TRUE(ranks_[0]->engine->wait(Level::kCommitted));  // what the old run left is cleared away
  // A delete waits for the cleaner, which would else take the zombie's directory away while that still writes there.
  EXPECT_EQ(ranks_[0]->engine->remove(999).error().kind, ErrorKind::kNotFound);
  const Status late = save(*zombie->engine, 2, zombie->model).wait(Level::kCommitted);
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().kind, ErrorKind::kAborted) << late.error().to_string();
  commit_all(3);
  EXPECT_EQ(steps_on_disk(), (Steps{2, 3}));
  auto newest = Checkpoint::open(options().path, 2);
  ASSERT_TRUE(newest);
  EXPECT_EQ(newest->version().attempt, 2u);
  EXPECT_TRUE(newest->verify()->damages.empty());
}

TEST_F(RanksTest, DamageOnOneRankMakesAllFallBackTogether) {
  start(4);
  commit_all(1);
  std::vector<std::map<std::string, Bytes>> first;
  for (const auto& rank : ranks_) {
    first.push_back(rank->model.copy());
    rank->model.update();
  }
  commit_all(2);
  damage(2, "rank-00002.safetensors");
  start(4);
  const std::vector<Outcome> restored = restore_all();
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    ASSERT_TRUE(restored[rank].result) << restored[rank].result.error().to_string();
    const Restored& what = **restored[rank].result;
    EXPECT_EQ(what.version.step, 1u);
    ASSERT_EQ(what.damaged.size(), 1u);
    EXPECT_NE(what.damaged[0].find("step 2: rank 2: "), std::string::npos) << what.damaged[0];
    EXPECT_EQ(restored[rank].reader.read, first[rank]);
  }
  commit_all(2);
  EXPECT_EQ(steps_on_disk(), (Steps{1, 2}));
}

TEST_F(RanksTest, TensorsThatOneRankHadAreNotForAnotherNumberOfRanks) {
  start(4);
  commit_all(1);
  for (const std::uint32_t world : {2u, 1u}) {
    start(world);
    for (const Outcome& restored : restore_all(1)) {
      ASSERT_TRUE(restored.result) << restored.result.error().to_string();
      EXPECT_EQ((*restored.result)->version.world, 4u);
      EXPECT_TRUE(restored.reader.read.empty());
    }
    Bytes memory(100);
    const Engine::Plan wants_it = [&](const Checkpoint&) -> Result<std::vector<Target>> {
      return std::vector{Target{.name = "bias", .dtype = DType::kU8, .shape = {100}, .data = memory.data()}};
    };
    together([&](std::uint32_t rank) {
      const auto refused = ranks_[rank]->engine->restore({}, wants_it);
      ASSERT_FALSE(refused);
      EXPECT_EQ(refused.error().kind, ErrorKind::kMismatch);
      EXPECT_NE(refused.error().message.find("saved by 4 ranks"), std::string::npos) << refused.error().message;
    });
  }
}

TEST_F(RanksTest, AMissingRankIsNamedAndNothingHangs) {
  Options options = rank_options(0, 3);
  options.commit_timeout = milliseconds(200);
  Rank alone(std::move(options), 1);
  Reader reader;
  const auto restored = alone.engine->restore({}, reader.plan());
  ASSERT_FALSE(restored);
  EXPECT_EQ(restored.error().kind, ErrorKind::kTimeout);
  EXPECT_NE(restored.error().message.find("ranks 1, 2 of 3"), std::string::npos) << restored.error().message;
  const Status saved = save(*alone.engine, 1, alone.model).wait(Level::kCommitted);
  ASSERT_FALSE(saved);
  EXPECT_EQ(saved.error().kind, ErrorKind::kTimeout);
}

TEST_F(RanksTest, ARankThatRestartsAloneIsNotTakenInAndTheOthersAreTold) {
  start_without_time(2);
  commit_all(1);
  ranks_[1].reset();
  ranks_[1] = rank_without_time(1, 2);
  std::vector<Status> statuses;
  for (const Snapshot& snapshot : save_all(2)) statuses.push_back(end_of(snapshot));
  ASSERT_FALSE(statuses[0]);
  EXPECT_NE(statuses[0].error().message.find("rank 1: did not report"), std::string::npos);
  ASSERT_FALSE(statuses[1]);
  EXPECT_NE(statuses[1].error().message.find("restart all ranks together"), std::string::npos)
      << statuses[1].error().message;
  EXPECT_EQ(steps_on_disk(), (Steps{1}));
}

TEST_F(RanksTest, RollbackGoesOnUnderOneNewAttemptOnAllRanks) {
  start(3, [](Options& options) { options.keep = 0; });
  for (std::uint64_t step = 1; step <= 3; ++step) commit_all(step);
  for (const Outcome& restored : restore_all(1)) ASSERT_TRUE(restored.result) << restored.result.error().to_string();
  commit_all(2);
  EXPECT_EQ(steps_on_disk(), (Steps{1, 2}));
  EXPECT_EQ(list_versions(options().path)->back().attempt, 2u);
}

TEST_F(RanksTest, OnlyRankZeroDeletesAndRanksAreCounted) {
  start(2);
  commit_all(1);
  commit_all(2);
  EXPECT_EQ(ranks_[1]->engine->remove(1).error().kind, ErrorKind::kInvalidArgument);
  const Status removed = ranks_[0]->engine->remove(1);
  EXPECT_TRUE(removed) << removed.error().to_string();
  EXPECT_EQ(Engine::open(rank_options(2, 2)).error().kind, ErrorKind::kInvalidArgument);
}

// Through a store, so that no rank lists a directory for messages.
TEST_F(RanksTest, OnlyRankZeroListsTheDirectoryAtACommitAndTheOthersWhenTheyAreAsked) {
  const auto store = std::make_shared<MemoryStore>();
  start(3, [&](Options& options) { options.store = store; });
  commit_all(1);
  commit_all(2);
  for (const auto& rank : ranks_) ASSERT_TRUE(rank->engine->wait(Level::kCommitted));
  std::vector<std::uint64_t> listings;
  for (const auto& rank : ranks_) listings.push_back(rank->fs->count(FsCall::kList));
  commit_all(3);
  for (const auto& rank : ranks_) ASSERT_TRUE(rank->engine->wait(Level::kCommitted));
  settle();
  EXPECT_GT(ranks_[0]->fs->count(FsCall::kList), listings[0]);
  for (const std::uint32_t member : {1u, 2u}) {
    EXPECT_EQ(ranks_[member]->fs->count(FsCall::kList), listings[member]) << "rank " << member;
    EXPECT_EQ(steps(*ranks_[member]->engine), (Steps{2, 3}));  // without the one that rank 0 has removed
  }
  ASSERT_TRUE(ranks_[0]->engine->remove(2));
  EXPECT_EQ(steps(*ranks_[1]->engine), (Steps{3}));
  EXPECT_EQ(ranks_[1]->engine->pin(2).error().kind, ErrorKind::kNotFound);
  ASSERT_TRUE(ranks_[1]->engine->pin(3));
  EXPECT_TRUE(ranks_[2]->engine->versions().back().pinned);
}

TEST_F(RanksTest, AnyRankPinsAStepInFlightAndTheMetricOfRankZeroDecides) {
  start(3, [](Options& options) {
    options.keep = 1;
    options.keep_best = {.metric = "loss", .count = 1};
  });
  const auto save_with = [&](std::uint64_t step, double loss) {
    std::vector<Snapshot> snapshots;
    for (std::uint32_t rank = 0; rank < ranks_.size(); ++rank) {
      State state = ranks_[rank]->model.state();
      state.metrics["loss"] = rank == 0 ? loss : -static_cast<double>(step);
      state.sealed_by_caller = true;
      auto saved = ranks_[rank]->engine->save(step, std::move(state));
      if (!saved) throw std::runtime_error(saved.error().to_string());
      snapshots.push_back(std::move(**saved));
    }
    return snapshots;
  };
  const double losses[] = {0.5, 0.1, 0.9, 0.7, 0.8};
  for (std::uint64_t step = 1; step <= 5; ++step) {
    std::vector<Snapshot> snapshots = save_with(step, losses[step - 1]);
    if (step == 1) {
      ASSERT_TRUE(ranks_[2]->engine->pin(1));
    }
    for (Snapshot& snapshot : snapshots) snapshot.seal();
    for (const Status& status : outcomes(std::move(snapshots))) ASSERT_TRUE(status) << status.error().to_string();
  }
  EXPECT_EQ(steps_on_disk(), (Steps{1, 2, 5}));
  EXPECT_EQ(steps(*ranks_[0]->engine), (Steps{1, 2, 5}));
}

TEST_F(RanksTest, ThroughAStoreAllIsTheSameAndNothingStaysThere) {
  const auto store = std::make_shared<MemoryStore>();
  const auto through_store = [&](Options& options) { options.store = store; };
  start(5, through_store);
  commit_all(1);
  commit_all(2);
  const std::size_t kept = store->values().size();
  ranks_[3]->fs->fail(FsCall::kSyncData, EIO, {.path = "safetensors"});
  std::vector<Status> statuses = outcomes(save_all(3));
  statuses.erase(statuses.begin() + 3);
  expect_same_abort(statuses, "rank 3: ");
  commit_all(4);
  commit_all(5);
  for (const auto& rank : ranks_) static_cast<void>(rank->engine->wait(Level::kCommitted));
  EXPECT_EQ(store->values().size(), kept);
  EXPECT_EQ(steps_on_disk(), (Steps{4, 5}));

  start(5, through_store);  // in the same job
  for (const Outcome& restored : restore_all()) {
    ASSERT_TRUE(restored.result) << restored.result.error().to_string();
    EXPECT_EQ((*restored.result)->version.step, 5u);
  }
  commit_all(6);
  for (const auto& rank : ranks_) EXPECT_TRUE(rank->engine->close({}));
  EXPECT_TRUE(store->values().empty()) << store->values().begin()->first;
  for (const auto& entry : std::filesystem::directory_iterator(options().path + "/.slackwater"))
    EXPECT_EQ(entry.path().string().find("session"), std::string::npos) << entry.path();
}

TEST_F(RanksTest, AStoreThatBreaksIsAnErrorOfTheStepAndNothingHangs) {
  const auto store = std::make_shared<MemoryStore>();
  start(3, [&](Options& options) { options.store = store; });
  commit_all(1);
  store->breaks(Error{ErrorKind::kIo, "the job is going down", {}, 0, false});
  for (const Status& status : outcomes(save_all(2))) {
    ASSERT_FALSE(status);
    EXPECT_NE(status.error().message.find("the job is going down"), std::string::npos) << status.error().to_string();
  }
  for (const auto& rank : ranks_) EXPECT_FALSE(rank->engine->close({}));
  EXPECT_EQ(list_versions(options().path)->size(), 1u);
}

// Ranks that skip when they are busy, each called for every step.
class SkippingRanksTest : public RanksTest, public ::testing::WithParamInterface<bool> {
 protected:
  void start_skipping(std::uint32_t world) {
    const auto store = GetParam() ? std::make_shared<MemoryStore>() : nullptr;
    start(world, [&](Options& options) {
      options.on_busy = OnBusy::kSkip;
      options.in_flight = 1;
      options.keep = 0;
      options.store = store;
    });
  }
  // nullopt: skipped.
  std::optional<Snapshot> call(std::uint32_t rank, std::uint64_t step) {
    auto snapshot = ranks_[rank]->engine->save(step, ranks_[rank]->model.state());
    if (!snapshot) throw std::runtime_error(snapshot.error().to_string());
    return std::move(*snapshot);
  }
  // Trains on from `step`, until so many more steps are committed on all ranks. The first step not called yet.
  std::uint64_t train(std::uint64_t step, std::size_t commits) {
    const std::size_t wanted = list_versions(options().path)->size() + commits;
    while (list_versions(options().path)->size() < wanted) {
      for (std::uint32_t rank = 0; rank < ranks_.size(); ++rank) static_cast<void>(call(rank, step));
      ++step;
      std::this_thread::sleep_for(milliseconds(1));  // a step of training
    }
    return step;
  }
};

INSTANTIATE_TEST_SUITE_P(Carriers, SkippingRanksTest, ::testing::Bool(),
                         [](const auto& each) { return each.param ? "Store" : "Directory"; });

TEST_P(SkippingRanksTest, AllSkipWhileOneIsBusyAndAllSaveTheSameStepAfterwards) {
  start_skipping(3);
  ranks_[1]->fs->hang(FsCall::kSyncData, {.path = "safetensors"});
  std::vector<Snapshot> first = save_all(1);
  for (std::uint64_t step = 2; step <= 20; ++step) {
    for (std::uint32_t rank = 0; rank < 3; ++rank) EXPECT_FALSE(call(rank, step)) << "rank " << rank;
  }
  ranks_[1]->fs->release_hung();
  for (const Status& status : outcomes(std::move(first))) EXPECT_TRUE(status) << status.error().to_string();
  train(21, 3);
  EXPECT_GE(ranks_[2]->engine->stats().snapshots_skipped, 19u);
  const auto versions = list_versions(options().path);
  EXPECT_EQ(versions->front().step, 1u);
  EXPECT_GT(versions->at(1).step, 20u);
}

TEST_P(SkippingRanksTest, ARankThatHearsOfItsTurnTooLateSaysSoAtOnceAndTheNextTurnsCommit) {
  start_skipping(3);
  ranks_[1]->fs->hang(FsCall::kSyncData, {.path = "safetensors"});
  std::vector<Snapshot> first = save_all(1);
  std::uint64_t ahead = 300;
  for (std::uint64_t step = 2; step <= ahead; ++step) EXPECT_FALSE(call(1, step));
  ranks_[1]->fs->release_hung();
  for (const Status& status : outcomes(std::move(first))) EXPECT_TRUE(status) << status.error().to_string();
  bool told = false;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  for (std::uint64_t step = 2; step <= ahead; ++step) {  // now the others come to these steps
    // On a busy machine rank 0 may take its time to give the turn: until it has, rank 1 stays ahead.
    if (!told && std::chrono::steady_clock::now() < deadline) static_cast<void>(call(1, ++ahead));
    std::optional<Snapshot> saved = call(0, step);
    static_cast<void>(call(2, step));
    if (saved) {
      const Status status = saved->wait(Level::kCommitted);
      ASSERT_FALSE(status);
      EXPECT_EQ(status.error().kind, ErrorKind::kAborted);
      told = told || status.error().message.find("rank 1: rank 0 chose step") != std::string::npos;
    }
    std::this_thread::sleep_for(milliseconds(1));  // a step of training
  }
  EXPECT_TRUE(told);
  train(ahead + 1, 2);
}

TEST_P(SkippingRanksTest, AfterARestoreTheTurnsBeginAnew) {
  start_skipping(2);
  train(1, 2);
  for (const auto& rank : ranks_) static_cast<void>(rank->engine->wait(Level::kCommitted));
  const std::uint64_t newest = list_versions(options().path)->back().step;
  for (const Outcome& restored : restore_all()) ASSERT_TRUE(restored.result) << restored.result.error().to_string();
  for (const Status& status : outcomes(save_all(newest + 1))) EXPECT_TRUE(status) << status.error().to_string();
  train(newest + 2, 1);
}

}  // namespace
}  // namespace slackwater::test
