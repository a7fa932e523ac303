// Four ranks in two subdirectories, laid out as thousands would be. A run is saved, restored on four ranks and on two,
// verified, pruned, and given up.
#include <filesystem>
#include <set>
#include <thread>

#include "engine/engine_impl.hpp"
#include "support/fault_file_system.hpp"
#include "support/global_tensor.hpp"
#include "support/rank_storage.hpp"
#include "unit/engine/engine_fixture.hpp"
#include "version/catalog.hpp"

namespace slackwater::test {
namespace {
namespace subdirectories_test {  // Rank: another file that this one may be compiled with has that name too

namespace stdfs = std::filesystem;

constexpr std::int64_t kRows = 12;
constexpr std::int64_t kColumns = 30'000;

// What the ranks of a run hold at one step: some rows each of one tensor, and a tensor of their own.
struct Held {
  Held(std::uint64_t step, std::uint32_t ranks)
      : rows{OwnedTensor::random("rows", DType::kF32, {kRows, kColumns}, step)}, world(ranks), states(ranks) {
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      own.push_back(OwnedTensor::random("own", DType::kU8, {1000 + rank}, 100 * step + rank));
      states.add_box(rank, rows, box(rank));
      states.add_local(rank, own.back());
      states.states()[rank].tree = "{}";
    }
  }
  [[nodiscard]] Box box(std::uint32_t rank) const { return {{kRows / world * rank, 0}, {kRows / world, kColumns}}; }

  GlobalTensor rows;
  std::uint32_t world;
  std::vector<OwnedTensor> own;
  RankStates states;
};

struct Rank {
  FaultFileSystem* fs = nullptr;  // owned by the engine
  std::unique_ptr<Engine> engine;
};

class SubdirectoriesTest : public EngineTest {
 protected:
  void start(std::uint32_t world, std::uint64_t keep = 0) {
    ranks_.clear();
    for (std::uint32_t rank = 0; rank < world; ++rank) {
      Options own = options();
      own.rank = rank;
      own.world = world;
      own.fan_in = 2;
      own.keep = keep;
      auto& made = ranks_.emplace_back(std::make_unique<Rank>());
      auto faulty = std::make_unique<FaultFileSystem>(storage_of_host(options().path, rank).fs());
      made->fs = faulty.get();
      made->engine = std::make_unique<Engine>(must(open_engine(
          std::move(own), {.fs = std::move(faulty), .clock = nullptr, .files = RankFiles{.ranks_in_directory = 2}})));
    }
  }
  // How the step ended on each rank, once all of them are done with it.
  std::vector<Status> save_all(std::uint64_t step) {
    held_ = std::make_unique<Held>(step, static_cast<std::uint32_t>(ranks_.size()));
    std::vector<Snapshot> snapshots;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank)
      snapshots.push_back(must(ranks_[rank]->engine->save(step, held_->states.states()[rank])).value());
    std::vector<Status> statuses;
    for (Snapshot& snapshot : snapshots) statuses.push_back(snapshot.wait(Level::kCommitted));
    for (const auto& rank : ranks_) static_cast<void>(rank->engine->wait(Level::kCommitted));
    return statuses;
  }
  void commit_all(std::uint64_t step) {
    for (const Status& status : save_all(step)) ASSERT_TRUE(status) << status.error().to_string();
  }
  // On all ranks; each must find what `held` says. The sentences about damaged versions that rank 0 was told.
  std::vector<std::string> restore_all(const Held& held, std::uint64_t step) {
    const auto world = static_cast<std::uint32_t>(ranks_.size());
    std::vector<std::vector<std::string>> damaged(world);
    {
      std::vector<std::jthread> threads;
      for (std::uint32_t rank = 0; rank < world; ++rank)
        threads.emplace_back([&, rank] { damaged[rank] = restore_one(held, step, rank); });
    }
    return damaged[0];
  }
  std::vector<std::string> restore_one(const Held& held, std::uint64_t step, std::uint32_t rank) {
    const auto world = static_cast<std::uint32_t>(ranks_.size());
    const Box box{{kRows / world * rank, 0}, {kRows / world, kColumns}};
    const Bytes wanted = held.rows.cut(box);
    Bytes rows(wanted.size());
    Bytes own(1000 + rank);
    const auto restored = ranks_[rank]->engine->restore({}, [&](const Checkpoint&) -> Result<std::vector<Target>> {
      std::vector<Target> targets{{.name = "rows",
                                   .dtype = DType::kF32,
                                   .shape = box.shape,
                                   .data = rows.data(),
                                   .shard = held.rows.shard(box)}};
      if (world == held.world)
        targets.push_back({.name = "own", .dtype = DType::kU8, .shape = {1000 + rank}, .data = own.data()});
      return targets;
    });
    EXPECT_TRUE(restored) << restored.error().to_string();
    if (!restored || !*restored) return {};
    EXPECT_EQ((*restored)->version.step, step);
    EXPECT_EQ(rows, wanted);
    if (world == held.world) {
      EXPECT_EQ(own, held.own[rank].bytes);
    }
    return (*restored)->damaged;
  }
  // The files below a directory of the run.
  [[nodiscard]] std::set<std::string> files_below(const std::string& name) {
    const std::string path = options().path + "/" + name;
    std::set<std::string> files;
    for (const auto& entry : stdfs::recursive_directory_iterator(path))
      if (entry.is_symlink() || !entry.is_directory()) files.insert(entry.path().string().substr(path.size() + 1));
    return files;
  }
  [[nodiscard]] std::string in_run(const std::string& name) { return options().path + "/" + name; }
  [[nodiscard]] std::vector<Damage> verify(std::uint64_t step) {
    return must(must(Checkpoint::open(options().path, step)).verify()).damages;
  }

  std::vector<std::unique_ptr<Rank>> ranks_;
  std::unique_ptr<Held> held_;  // of the step saved last
};

using Files = std::set<std::string>;

TEST_F(SubdirectoriesTest, WhatFourRanksSavedComesBackOnFourAndOnTwo) {
  start(4);
  commit_all(1);
  EXPECT_EQ(files_below("step-0000000001.a1"),
            (Files{"g0000/rank-00000.record", "g0000/rank-00000.safetensors", "g0000/rank-00001.record",
                   "g0000/rank-00001.safetensors", "g0001/rank-00002.record", "g0001/rank-00002.safetensors",
                   "g0001/rank-00003.record", "g0001/rank-00003.safetensors", "index", "manifest.json"}));
  for (const std::uint32_t world : {4u, 2u}) {
    SCOPED_TRACE(world);
    start(world);
    EXPECT_TRUE(restore_all(*held_, 1).empty());
  }
  ranks_.clear();

  Checkpoint checkpoint = must(Checkpoint::open(options().path));
  EXPECT_EQ(checkpoint.files()[3].name, "g0001/rank-00003.safetensors");
  const OwnedTensor& whole = held_->rows.whole;
  Bytes memory(whole.bytes.size());
  const Target target{.name = "rows", .dtype = DType::kF32, .shape = whole.shape, .data = memory.data()};
  ASSERT_TRUE(checkpoint.read({&target, 1}));
  EXPECT_EQ(memory, whole.bytes);
  const VerifyReport report = must(checkpoint.verify());
  EXPECT_TRUE(report.damages.empty());
  EXPECT_EQ(report.bytes_read, checkpoint.version().size_bytes);

  stdfs::remove(in_run("step-0000000001.a1/index"));  // the headers of all files say the same
  start(2);
  EXPECT_TRUE(restore_all(*held_, 1).empty());
}

TEST_F(SubdirectoriesTest, DamageIsNamedWithTheSubdirectoryItIsIn) {
  start(4);
  commit_all(1);
  ranks_.clear();
  flip_bit(in_run("step-0000000001.a1/g0001/rank-00003.safetensors"), 100'000, 1);
  stdfs::remove(in_run("step-0000000001.a1/g0000/rank-00001.record"));
  const std::vector<Damage> damages = verify(1);
  ASSERT_EQ(damages.size(), 2u);
  EXPECT_EQ(damages[0].file, "g0000/rank-00001.record");
  EXPECT_EQ(damages[0].tensors, (std::vector<std::string>{"rows", "rank-00001/own"}));
  EXPECT_EQ(damages[1].file, "g0001/rank-00003.safetensors");
  EXPECT_EQ(damages[1].tensors, (std::vector<std::string>{"(header)", "rows", "rank-00003/own"}));  // all in one block
}

TEST_F(SubdirectoriesTest, RetentionLeavesNothingOfAnOldStepBehind) {
  start(4, 1);
  for (std::uint64_t step = 1; step <= 3; ++step) commit_all(step);
  ranks_.clear();
  Files left;
  for (const auto& entry : stdfs::directory_iterator(options().path)) left.insert(entry.path().filename());
  EXPECT_EQ(left, (Files{".slackwater", "step-0000000003.a1"}));
}

TEST_F(SubdirectoriesTest, AStepGivenUpLeavesNoFilesAndItsDirectoriesGoWithTheNextCommit) {
  start(4);
  ranks_[3]->fs->fail(FsCall::kSyncDirectory, EIO, {.path = "/g0001"});
  for (const Status& status : save_all(1)) ASSERT_FALSE(status);
  EXPECT_EQ(files_below("step-0000000001.a1"), Files{"manifest.json"});
  EXPECT_TRUE(list_versions(options().path)->empty());
  commit_all(2);
  ranks_.clear();  // rank 0 deletes in the background; close() waits for it
  EXPECT_FALSE(stdfs::exists(in_run("step-0000000001.a1")));
}

TEST_F(SubdirectoriesTest, ALinkInPlaceOfOneIsNotReadThroughAndTheStepBeforeIsUsed) {
  if (ranks_are_nfs_hosts()) GTEST_SKIP() << "a host does not see for a minute that a directory it used became a link";
  start(4);
  commit_all(1);
  const std::unique_ptr<Held> first = std::move(held_);
  commit_all(2);
  const std::string elsewhere = directory_ / "elsewhere";
  const std::string planted = in_run("step-0000000002.a1/g0001");
  stdfs::rename(planted, elsewhere);
  stdfs::create_directory_symlink(elsewhere, planted);

  const std::vector<Damage> damages = verify(2);
  ASSERT_EQ(damages.size(), 2u);
  EXPECT_NE(damages[0].what.find("found a link"), std::string::npos) << damages[0].what;
  start(4, 1);
  const std::vector<std::string> damaged = restore_all(*first, 1);
  ASSERT_EQ(damaged.size(), 1u);
  EXPECT_NE(damaged[0].find("g0001"), std::string::npos) << damaged[0];

  commit_all(2);  // under a new attempt; the damaged version is set aside, and stays as it is
  ranks_.clear();
  EXPECT_TRUE(files_below("step-0000000002.a1").contains("manifest.json"));
  EXPECT_EQ(std::distance(stdfs::directory_iterator(elsewhere), {}), 4);
}

TEST_F(SubdirectoriesTest, ALinkOnTheWayOfASaveIsNotWrittenThroughAndTheNextStepCommits) {
  start(4);
  commit_all(1);
  const std::string elsewhere = directory_ / "elsewhere";
  stdfs::create_directory(elsewhere);
  stdfs::create_directory(in_run("step-0000000002.a1"));
  stdfs::create_directory_symlink(elsewhere, in_run("step-0000000002.a1/g0001"));
  const std::vector<Status> statuses = save_all(2);
  for (const Status& status : statuses) ASSERT_FALSE(status);
  EXPECT_NE(statuses[0].error().message.find("found a link"), std::string::npos) << statuses[0].error().message;
  EXPECT_TRUE(stdfs::is_empty(elsewhere));
  commit_all(3);
}

}  // namespace subdirectories_test
}  // namespace
}  // namespace slackwater::test
