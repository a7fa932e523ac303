// Restore over tiers with several ranks: all of them restore the same version, bytes from below cross the network once,
// and nodes with directories of their own make up one checkpoint.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <thread>

#include <fmt/format.h>

#include "engine/engine_impl.hpp"
#include "support/fault_file_system.hpp"
#include "support/file_bytes.hpp"
#include "support/memory_store.hpp"
#include "support/pattern_state.hpp"
#include "unit/engine/engine_fixture.hpp"
#include "version/catalog.hpp"

namespace slackwater::test {
namespace {

namespace stdfs = std::filesystem;

constexpr std::uint64_t kDataBytes = 3u << 20;

// One rank: its engine, its storage, and a state that says which step and rank it is of.
struct TieredRank {
  explicit TieredRank(Options options) : number(options.rank) {
    auto faulty = std::make_unique<FaultFileSystem>(*real);
    fs = faulty.get();
    auto opened = open_engine(std::move(options), {.fs = std::move(faulty), .clock = nullptr});
    if (!opened) throw std::runtime_error(opened.error().to_string());
    engine = std::make_unique<Engine>(std::move(*opened));
  }
  const std::unique_ptr<FileSystem> real = make_posix_file_system();
  std::uint32_t number;
  PatternState state{{{"w", kDataBytes}, {"bias", 100}}};
  FaultFileSystem* fs = nullptr;  // owned by the engine
  std::unique_ptr<Engine> engine;
};

class TiersRanksTest : public EngineTest {
 protected:
  using Ranks = std::vector<std::unique_ptr<TieredRank>>;
  [[nodiscard]] std::string lower() { return directory_.path() + "/lower"; }
  [[nodiscard]] std::string upper() { return EngineTest::options().path; }

  Options rank_options(std::uint32_t rank, std::uint32_t world) {
    Options options = EngineTest::options();
    options.rank = rank;
    options.world = world;
    options.fan_in = 2;
    options.tiers.push_back({.location = lower()});
    return options;
  }
  using Change = std::function<void(Options&)>;
  Ranks start(std::uint32_t world, const Change& change = [](Options&) {}) {
    Ranks ranks;
    for (std::uint32_t rank = 0; rank < world; ++rank) {
      Options options = rank_options(rank, world);
      change(options);
      ranks.push_back(std::make_unique<TieredRank>(std::move(options)));
    }
    return ranks;
  }
  static std::uint64_t content(std::uint64_t step, std::uint32_t rank) { return step * 100 + rank; }
  static void commit_all(Ranks& ranks, std::uint64_t step) {
    std::vector<Snapshot> snapshots;
    for (const auto& rank : ranks) {
      rank->state.fill(content(step, rank->number));
      auto saved = rank->engine->save(step, rank->state.state());
      ASSERT_TRUE(saved) << saved.error().to_string();
      snapshots.push_back(std::move(**saved));
    }
    for (Snapshot& snapshot : snapshots) {
      const Status status = snapshot.wait(Level::kCommitted);
      ASSERT_TRUE(status) << status.error().to_string();
    }
  }
  static void close_all(Ranks& ranks) {
    std::vector<std::jthread> threads;
    for (const auto& rank : ranks) {
      threads.emplace_back([&rank] {
        const Status closed = rank->engine->close();
        EXPECT_TRUE(closed) << closed.error().to_string();
      });
    }
  }
  // The step that all ranks restored, with the bytes that `saved_as` of them saved; 0: none.
  static std::uint64_t restore_all(Ranks& ranks, std::vector<std::string>* damaged = nullptr) {
    std::vector<std::uint64_t> steps(ranks.size());
    {
      std::vector<std::jthread> threads;
      for (const auto& rank : ranks) {
        threads.emplace_back([&, rank = rank.get()] {
          const auto restored = rank->engine->restore({}, rank->state.plan());
          EXPECT_TRUE(restored) << restored.error().to_string();
          if (!restored || !*restored) return;
          const std::uint64_t step = steps[rank->number] = (*restored)->version.step;
          EXPECT_EQ(rank->state.number(), content(step, rank->number));
          EXPECT_EQ(rank->state.difference(), std::nullopt);
          if (damaged != nullptr && rank->number == 0) *damaged = (*restored)->damaged;
        });
      }
    }
    for (const std::uint64_t step : steps) EXPECT_EQ(step, steps[0]) << "ranks restored different steps";
    return steps[0];
  }
  static void flip(const std::string& path) {
    std::fstream stream(path, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(2 << 20);
    const int byte = stream.get();
    stream.seekp(2 << 20);
    stream.put(static_cast<char>(byte ^ 1));
    ASSERT_TRUE(stream.good()) << path;
  }
  static std::string data(const std::string& tier, std::uint64_t step, std::uint32_t rank) {
    return tier + "/step-000000000" + std::to_string(step) + ".a1/rank-0000" + std::to_string(rank) + ".safetensors";
  }
};

TEST_F(TiersRanksTest, OneRanksDamagedFileComesFromBelowAndNoOther) {
  Ranks first = start(3);
  commit_all(first, 1);
  close_all(first);
  first.clear();
  flip(data(upper(), 1, 1));

  Ranks ranks = start(3);
  for (const auto& rank : ranks) rank->fs->watch(FsCall::kReadAt, lower() + "/step-0000000001.a1/rank-00001.safe");
  std::vector<std::string> damaged;
  EXPECT_EQ(restore_all(ranks, &damaged), 1u);
  EXPECT_TRUE(damaged.empty());
  EXPECT_EQ(ranks[0]->fs->watched_calls(), 0u);
  EXPECT_GT(ranks[1]->fs->watched_calls(), 0u);
  EXPECT_EQ(ranks[2]->fs->watched_calls(), 0u);
  close_all(ranks);
}

TEST_F(TiersRanksTest, DamagedOnBothTiersAllRanksUseTheVersionBeforeAndSayWhatWasTried) {
  Ranks first = start(2, [](Options& options) { options.tiers[0].keep = 0; });
  commit_all(first, 1);
  commit_all(first, 2);
  close_all(first);
  first.clear();
  ASSERT_TRUE(stdfs::exists(data(lower(), 2, 1)));
  flip(data(upper(), 2, 1));
  flip(data(lower(), 2, 1));

  Ranks ranks = start(2);
  std::vector<std::string> damaged;
  EXPECT_EQ(restore_all(ranks, &damaged), 1u);
  ASSERT_EQ(damaged.size(), 1u);
  EXPECT_NE(damaged[0].find("rank 1"), std::string::npos) << damaged[0];
  EXPECT_NE(damaged[0].find("no tier has it intact"), std::string::npos) << damaged[0];
  close_all(ranks);
}

// One rank saved; four restore it, each the whole of it.
class ReadOnceTest : public TiersRanksTest {
 protected:
  void save_alone() {
    PatternState saved({{"w", kDataBytes}, {"bias", 100}});
    Engine engine = open(rank_options(0, 1));
    saved.fill(content(1, 0));
    auto snapshot = engine.save(1, saved.state());
    ASSERT_TRUE(snapshot);
    ASSERT_TRUE((*snapshot)->wait(Level::kCommitted));
    ASSERT_TRUE(engine.close());
    ASSERT_TRUE(stdfs::exists(data(lower(), 1, 0)));
  }
  void expect_one_read_from_below() {
    const std::string below = lower() + "/step-0000000001.a1/rank-00000.safe";
    Ranks ranks = start(4);
    for (const auto& rank : ranks) {
      rank->fs->watch(FsCall::kReadAt, below);
      rank->fs->fail(FsCall::kQueueRead, EIO, {.times = kAlways, .path = below});  // straight to the tensors
    }
    {
      std::vector<std::jthread> threads;
      for (const auto& rank : ranks) {
        threads.emplace_back([rank = rank.get()] {
          const auto restored = rank->engine->restore({}, rank->state.plan());
          ASSERT_TRUE(restored) << restored.error().to_string();
          EXPECT_EQ(rank->state.number(), content(1, 0));
          EXPECT_EQ(rank->state.difference(), std::nullopt);
        });
      }
    }
    std::uint64_t copied = 0;
    for (const auto& rank : ranks) copied += rank->fs->watched_calls();
    EXPECT_EQ(copied, 1u) << "the file has one part of 8 MiB";
    close_all(ranks);
  }
};

TEST_F(ReadOnceTest, AVersionThatTier0HasLost) {
  save_alone();
  stdfs::remove_all(upper());
  expect_one_read_from_below();
}

TEST_F(ReadOnceTest, ADataFileThatTier0HasLost) {
  save_alone();
  stdfs::remove(data(upper(), 1, 0));
  expect_one_read_from_below();
}

TEST_F(ReadOnceTest, ADataFileThatIsDamagedOnTier0) {
  save_alone();
  flip(data(upper(), 1, 0));
  expect_one_read_from_below();
  EXPECT_EQ(read_file(data(upper(), 1, 0)), read_file(data(lower(), 1, 0))) << "it was mended";
}

TEST_F(TiersRanksTest, ARepairIsVisibleOnlyWhenAllRanksHaveCopied) {
  Ranks first = start(2);
  commit_all(first, 1);
  close_all(first);
  first.clear();
  stdfs::remove_all(upper());
  Ranks ranks = start(2);
  // Rank 1 cannot write its part to tier 0, neither before it reads nor afterwards.
  ranks[1]->fs->fail(FsCall::kWriteAt, EIO, {.times = kAlways, .path = upper() + "/step-"});
  ranks[0]->fs->watch(FsCall::kOpen, upper() + "/step-0000000001.a1/rank-00001.record");
  EXPECT_EQ(restore_all(ranks), 1u);
  // Rank 0 looks for it again and again.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (ranks[0]->fs->watched_calls() < 3) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "rank 0 does not wait for rank 1";
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  close_all(ranks);
  EXPECT_TRUE(list_versions(upper()).value().empty()) << "half a version is visible";
}

// Three simulated nodes with two ranks each. Each node has a directory of its own.
class NodeLocalTest : public TiersRanksTest {
 protected:
  static constexpr std::uint32_t kPerNode = 2;
  [[nodiscard]] std::string node(std::uint32_t number) { return directory_.path() + "/node" + std::to_string(number); }
  // Which rank is on which node. By default, nodes in order.
  Ranks start_nodes(std::uint32_t world, std::function<std::uint32_t(std::uint32_t rank)> node_of = {},
                    std::uint64_t keep = 2) {
    const auto store = std::make_shared<MemoryStore>();
    return start(world, [&, store](Options& options) {
      options.node_local = true;
      options.local_ranks = kPerNode;
      options.store = store;
      options.path = node(node_of ? node_of(options.rank) : options.rank / kPerNode);
      options.tiers[0].keep = 0;
      options.keep = keep;
    });
  }
};

TEST_F(NodeLocalTest, WithoutAStoreTheErrorSaysWhatIsMissing) {
  Options options = rank_options(0, 2);
  options.node_local = true;
  const auto engine = Engine::open(options);
  ASSERT_FALSE(engine);
  EXPECT_NE(engine.error().message.find("Options::store"), std::string::npos) << engine.error().to_string();
}

TEST_F(NodeLocalTest, EachNodeHasItsOwnFilesAndTheDecision) {
  Ranks ranks = start_nodes(4);
  commit_all(ranks, 1);
  commit_all(ranks, 2);
  close_all(ranks);
  for (std::uint32_t number = 0; number < 2; ++number) {
    const auto versions = list_versions(node(number));
    ASSERT_TRUE(versions) << versions.error().to_string();
    ASSERT_EQ(versions->size(), 2u) << "node " << number;
    for (std::uint32_t rank = 0; rank < 4; ++rank)
      EXPECT_EQ(stdfs::exists(data(node(number), 2, rank)), rank / kPerNode == number);
    EXPECT_TRUE(stdfs::exists(node(number) + "/step-0000000002.a1/index"));
  }
}

TEST_F(NodeLocalTest, NodesThatAreAllThereRestoreFromTheirOwnDisks) {
  Ranks first = start_nodes(4);
  commit_all(first, 1);
  close_all(first);
  first.clear();
  Ranks ranks = start_nodes(4);
  for (const auto& rank : ranks) rank->fs->watch(FsCall::kQueueRead, lower());
  EXPECT_EQ(restore_all(ranks), 1u);
  for (const auto& rank : ranks) EXPECT_EQ(rank->fs->watched_calls(), 0u);
  commit_all(ranks, 2);
  close_all(ranks);
}

TEST_F(NodeLocalTest, OneOfThreeNodesIsLostAndTheRunIsRestoredOnTwoFromTheTierBelow) {
  Ranks first = start_nodes(6);
  commit_all(first, 1);
  close_all(first);
  first.clear();
  stdfs::remove_all(node(2));  // with the files of ranks 4 and 5

  // Six ranks again, on the two nodes that are left.
  Ranks ranks = start_nodes(6, [](std::uint32_t rank) { return rank % 2; });
  std::vector<std::string> damaged;
  EXPECT_EQ(restore_all(ranks, &damaged), 1u);
  EXPECT_TRUE(damaged.empty());
  commit_all(ranks, 2);
  close_all(ranks);
  ranks.clear();
  Ranks again = start_nodes(6, [](std::uint32_t rank) { return rank % 2; });
  EXPECT_EQ(restore_all(again), 2u);
  close_all(again);
}

TEST_F(NodeLocalTest, RanksOnOtherNodesThanBeforeStillCopyWhatIsDueBelow) {
  Ranks first = start_nodes(4);
  commit_all(first, 1);
  commit_all(first, 2);
  close_all(first);
  first.clear();
  stdfs::remove_all(lower() + "/step-0000000001.a1");  // as if only the newer one had been copied in time

  Ranks ranks = start_nodes(4, [](std::uint32_t rank) { return 1 - rank / kPerNode; });
  EXPECT_EQ(restore_all(ranks), 2u);
  commit_all(ranks, 3);
  close_all(ranks);
  const auto versions = list_versions(lower());
  ASSERT_TRUE(versions) << versions.error().to_string();
  std::vector<std::uint64_t> steps;
  for (const VersionInfo& version : *versions) steps.push_back(version.step);
  EXPECT_EQ(steps, (std::vector<std::uint64_t>{1, 2, 3})) << log();
  EXPECT_EQ(log().find("is not copied"), std::string::npos) << log();
}

// Step 2 is on the nodes 0 to 2 alone. The run goes on from step 1 on the nodes 3 to 5, and then one node comes back.
TEST_F(NodeLocalTest, WhatANodeHadWhenTheRunLeftItIsSetAsideWhenItComesBack) {
  Ranks first = start_nodes(6);
  commit_all(first, 1);
  commit_all(first, 2);
  close_all(first);
  first.clear();
  stdfs::remove_all(lower() + "/step-0000000002.a1");
  Ranks second = start_nodes(6, [](std::uint32_t rank) { return 3 + rank / kPerNode; });
  EXPECT_EQ(restore_all(second), 1u);
  commit_all(second, 3);
  close_all(second);
  second.clear();

  Ranks ranks = start_nodes(6, [](std::uint32_t rank) { return rank < 4 ? 3 + rank / kPerNode : 1; }, 1);
  EXPECT_EQ(restore_all(ranks), 3u);
  commit_all(ranks, 4);
  // Step 1 expires there. What counts as rolled back is deleted before it.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (stdfs::exists(node(1) + "/step-0000000001.a1")) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline) << log();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_TRUE(stdfs::exists(node(1) + "/step-0000000002.a1/manifest.json"))
      << "a rollback that nobody asked for has deleted it";
  close_all(ranks);
}

// Only a rank of this node could tell the others what is there.
TEST_F(NodeLocalTest, IfARankCannotReachTheDirectoryOfItsNodeTheRestoreFails) {
  Ranks first = start_nodes(4);
  commit_all(first, 1);
  close_all(first);
  first.clear();
  Ranks ranks = start_nodes(4);
  ranks[3]->fs->fail(FsCall::kTryLock, EIO, {.times = kAlways, .path = node(1)});
  ranks[3]->fs->fail(FsCall::kList, EIO, {.times = kAlways, .path = node(1)});
  {
    std::vector<std::jthread> threads;
    for (const auto& rank : ranks) {
      threads.emplace_back([&, rank = rank.get()] {
        const auto restored = rank->engine->restore({}, rank->state.plan());
        ASSERT_FALSE(restored) << "rank " << rank->number;
        EXPECT_TRUE(restored.error().retryable);
        EXPECT_NE(restored.error().message.find("rank 3: the tier " + node(1) + " cannot be reached"),
                  std::string::npos)
            << restored.error().to_string();
      });
    }
  }
  ranks[3]->fs->clear_faults();
  EXPECT_EQ(restore_all(ranks), 1u);
  close_all(ranks);
}

TEST_F(NodeLocalTest, WithoutALowerTierAWarningSaysWhatALostNodeCosts) {
  Options options = rank_options(0, 2);
  options.node_local = true;
  options.store = std::make_shared<MemoryStore>();
  options.tiers.clear();
  ASSERT_TRUE(Engine::open(options));
  EXPECT_NE(log().find("there is no lower tier: if a node or its disk is lost"), std::string::npos) << log();
}

TEST_F(NodeLocalTest, OnlyTheFirstTierCanBeOfOneNode) {
  Options options = rank_options(0, 1);
  options.tiers[0].node_local = true;
  const auto lower_tier = Engine::open(options);
  ASSERT_FALSE(lower_tier);
  EXPECT_NE(lower_tier.error().message.find("all nodes must share the lower tiers"), std::string::npos);

  options.tiers.insert(options.tiers.begin(), TierOptions{.location = options.path, .keep = 1, .node_local = true});
  options.tiers[1].node_local = false;
  options.path.clear();
  const auto engine = Engine::open(options);
  ASSERT_TRUE(engine) << engine.error().to_string();
  EXPECT_EQ(engine->tiers().size(), 1u) << "the first one is tier 0";
}

TEST_F(NodeLocalTest, OneRankOfEachNodeWarnsBeforeItsDiskIsFull) {
  Ranks ranks = start_nodes(4);
  for (const auto& rank : ranks) rank->fs->set_free_bytes(rank->number / kPerNode == 1 ? 7 * kMiB : 1000 * kMiB);
  commit_all(ranks, 1);
  close_all(ranks);
  const std::string text = log();
  const std::size_t told = text.find("the disk will be full: 7 MiB free");
  ASSERT_NE(told, std::string::npos) << text;
  EXPECT_NE(text.find(node(1), told), std::string::npos) << text;
  EXPECT_EQ(text.find("the disk will be full", told + 1), std::string::npos) << "by one rank: " << text;
}

TEST_F(NodeLocalTest, AStepThatTheLostNodeDidNotCopyBelowFallsBackToTheOneBefore) {
  Ranks first = start_nodes(4);
  commit_all(first, 1);
  close_all(first);
  first.clear();
  {
    Ranks second = start_nodes(4);
    for (const auto& rank : second) rank->fs->fail(FsCall::kLink, EIO, {.times = kAlways, .path = lower()});
    EXPECT_EQ(restore_all(second), 1u);
    commit_all(second, 2);
    std::vector<std::jthread> threads;
    for (const auto& rank : second)
      threads.emplace_back([&rank] { static_cast<void>(rank->engine->close(std::chrono::seconds(1))); });
  }
  stdfs::remove_all(node(1));
  Ranks ranks = start_nodes(4);
  std::vector<std::string> damaged;
  EXPECT_EQ(restore_all(ranks, &damaged), 1u);
  ASSERT_EQ(damaged.size(), 1u);
  EXPECT_NE(damaged[0].find("the other nodes: cannot be read from here"), std::string::npos) << damaged[0];
  close_all(ranks);
}

// The other nodes still have the step, and only rank 0's node knows that it was deleted.
class NodeLocalDeleteTest : public NodeLocalTest {
 protected:
  // Steps 1 and 2 on two nodes. The tier below has not followed.
  void delete_unheard(std::uint64_t step) {
    Ranks first = start_nodes(4);
    commit_all(first, 1);
    commit_all(first, 2);
    for (const auto& rank : first) ASSERT_TRUE(rank->engine->wait_copied());
    first[0]->fs->fail(FsCall::kUnlink, EIO, {.times = kAlways, .path = lower()});
    ASSERT_TRUE(first[0]->engine->remove(step));
    {
      std::vector<std::jthread> threads;
      for (const auto& rank : first)
        threads.emplace_back([&rank] { static_cast<void>(rank->engine->close(std::chrono::milliseconds(300))); });
    }
    ASSERT_TRUE(has(node(1), step));
    ASSERT_TRUE(has(lower(), step));
  }
  [[nodiscard]] static bool has(const std::string& root, std::uint64_t step) {
    return stdfs::exists(version_path(root, {step, 1}) + "/" + kManifestName);
  }
  [[nodiscard]] static int notes(const std::string& root) {
    int count = 0;
    for (const auto& entry : stdfs::directory_iterator(control_path(root)))
      count += parse_delete_note_file(entry.path().filename().string()) ? 1 : 0;
    return count;
  }
};

TEST_F(NodeLocalDeleteTest, AStepThatTheTierBelowHasStillToDeleteIsUsedByNoNode) {
  delete_unheard(2);
  Ranks ranks = start_nodes(4);
  EXPECT_EQ(restore_all(ranks), 1u);
  commit_all(ranks, 3);
  for (const auto& rank : ranks) EXPECT_TRUE(rank->engine->wait_copied());
  EXPECT_FALSE(stdfs::exists(lower() + "/step-0000000002.a1"));
  close_all(ranks);
}

TEST_F(NodeLocalDeleteTest, ARunWhoseRank0IsOnAnotherNodeFollowsToo) {
  for (const std::uint64_t step : {1u, 2u}) {
    delete_unheard(step);
    ASSERT_EQ(notes(node(0)), 1);
    Ranks ranks = start_nodes(4, [](std::uint32_t rank) { return 1 - rank / kPerNode; });
    EXPECT_EQ(restore_all(ranks), 3 - step);
    commit_all(ranks, 3);
    for (const auto& rank : ranks) {
      const Status copied = rank->engine->wait_copied();
      EXPECT_TRUE(copied) << copied.error().to_string();
    }
    EXPECT_FALSE(has(lower(), step));
    EXPECT_TRUE(has(lower(), 3 - step));
    EXPECT_EQ(notes(node(0)), 0) << "the next run would hide a copy that somebody brings back";
    close_all(ranks);
    const Catalog left = scan_catalog(*ranks[0]->real, node(1)).value();
    EXPECT_FALSE(std::ranges::any_of(left.live_versions(), [&](const auto& info) { return info.step == step; }));
    // One true thing is said, and nothing else.
    EXPECT_NE(log().find(fmt::format("step {} (attempt 1) is not used: it was deleted", step)), std::string::npos);
    EXPECT_EQ(log().find("set aside"), std::string::npos) << log();
    ranks.clear();
    for (const std::string& root : {node(0), node(1), lower()}) stdfs::remove_all(root);
  }
}

TEST_F(NodeLocalTest, ANodeThatDiedBeforeItHadTheDecisionLearnsItFromTheOthers) {
  Ranks first = start_nodes(4);
  commit_all(first, 1);
  close_all(first);
  first.clear();
  // As if node 1 had died between rank 0's decision and its own copy of it. Nothing was copied below either.
  stdfs::remove(node(1) + "/step-0000000001.a1/manifest.json");
  stdfs::remove(node(1) + "/step-0000000001.a1/index");
  stdfs::remove_all(lower());
  Ranks ranks = start_nodes(4);
  EXPECT_EQ(restore_all(ranks), 1u);
  EXPECT_TRUE(stdfs::exists(node(1) + "/step-0000000001.a1/manifest.json"));
  close_all(ranks);
}

}  // namespace
}  // namespace slackwater::test
