// Global tensors are restored by another number of ranks than saved them. Every rank gets its boxes of the same
// version, and the run continues.
#include <filesystem>
#include <functional>
#include <thread>

#include "support/global_tensor.hpp"
#include "support/write_ranks.hpp"
#include "unit/engine/engine_fixture.hpp"

namespace slackwater::test {
namespace {
namespace restore_worlds_test {  // Rank: another file that this one may be compiled with has that name too

// One rank of a run that holds a box of each tensor: some rows of "rows", some columns of "columns".
struct Rank {
  Engine engine;
  std::vector<Box> boxes;
  std::vector<Bytes> memory;
  Result<std::optional<Restored>> restored = std::optional<Restored>();
};

class RestoreWorldsTest : public EngineTest {
 protected:
  void make_tensors(unsigned seed) {
    tensors_.clear();
    tensors_.push_back({OwnedTensor::random("rows", DType::kF32, {50, 30'000}, seed)});
    tensors_.push_back({OwnedTensor::random("columns", DType::kBF16, {61, 37}, seed)});
  }
  // Rank r of so many, of tensor `which`: nothing, where there are more ranks than rows.
  [[nodiscard]] Box box_of(std::size_t which, std::uint32_t rank, std::uint32_t world) const {
    const std::vector<std::int64_t>& shape = tensors_[which].whole.shape;
    const std::int64_t each = (shape[which] + world - 1) / world;
    Box box{{0, 0}, shape};
    box.offset[which] = std::min<std::int64_t>(rank * each, shape[which]);
    box.shape[which] = std::min<std::int64_t>(each, shape[which] - box.offset[which]);
    return box;
  }
  // What a run of so many ranks committed.
  std::string commit(std::uint64_t step, std::uint32_t world) {
    make_tensors(static_cast<unsigned>(step));
    RankStates ranks(world);
    for (std::uint32_t rank = 0; rank < world; ++rank)
      for (std::size_t which = 0; which < tensors_.size(); ++which)
        ranks.add_box(rank, tensors_[which], box_of(which, rank, world));
    return RanksWriter(options().path, world).write(step, ranks.states());
  }
  void start(std::uint32_t world) {
    ranks_.clear();
    for (std::uint32_t rank = 0; rank < world; ++rank) {
      Options own = options();
      own.rank = rank;
      own.world = world;
      ranks_.push_back(std::make_unique<Rank>(Rank{.engine = open(std::move(own))}));
      for (std::size_t which = 0; which < tensors_.size(); ++which) {
        ranks_.back()->boxes.push_back(box_of(which, rank, world));
        ranks_.back()->memory.emplace_back(tensors_[which].cut(ranks_.back()->boxes.back()).size());
      }
    }
  }
  void restore_all() {
    std::vector<std::jthread> threads;
    for (const auto& rank : ranks_) {
      threads.emplace_back([&] {
        rank->restored = rank->engine.restore({}, [&](const Checkpoint&) -> Result<std::vector<Target>> {
          std::vector<Target> targets;
          for (std::size_t which = 0; which < tensors_.size(); ++which) {
            targets.push_back({.name = tensors_[which].whole.name,
                               .dtype = tensors_[which].whole.dtype,
                               .shape = rank->boxes[which].shape,
                               .data = rank->memory[which].data(),
                               .shard = tensors_[which].shard(rank->boxes[which])});
          }
          return targets;
        });
      });
    }
  }
  // Every rank has its boxes of what tensors_ holds now.
  void expect_restored(std::uint64_t step, std::uint32_t saved_by) {
    for (const auto& rank : ranks_) {
      ASSERT_TRUE(rank->restored) << rank->restored.error().to_string();
      ASSERT_TRUE(*rank->restored);
      EXPECT_EQ((*rank->restored)->version.step, step);
      EXPECT_EQ((*rank->restored)->version.world, saved_by);
      for (std::size_t which = 0; which < tensors_.size(); ++which)
        EXPECT_EQ(rank->memory[which], tensors_[which].cut(rank->boxes[which])) << tensors_[which].whole.name;
    }
  }
  // What the ranks hold now, saved by their engines.
  void save_all(std::uint64_t step) {
    std::vector<Snapshot> snapshots;
    for (const auto& rank : ranks_) {
      State state;
      for (std::size_t which = 0; which < tensors_.size(); ++which) {
        state.tensors.push_back({.name = tensors_[which].whole.name,
                                 .dtype = tensors_[which].whole.dtype,
                                 .shape = rank->boxes[which].shape,
                                 .data = rank->memory[which].data(),
                                 .shard = tensors_[which].shard(rank->boxes[which])});
      }
      auto snapshot = rank->engine.save(step, state);
      ASSERT_TRUE(snapshot) << snapshot.error().to_string();
      snapshots.push_back(std::move(**snapshot));
    }
    for (Snapshot& snapshot : snapshots) {
      const Status status = snapshot.wait(Level::kCommitted);
      ASSERT_TRUE(status) << status.error().to_string();
    }
  }

  std::vector<GlobalTensor> tensors_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

TEST_F(RestoreWorldsTest, EveryNumberOfRanksGoesOnFromWhatAnotherSaved) {
  commit(1, 4);
  std::uint32_t saved_by = 4;
  std::uint64_t step = 1;
  for (const std::uint32_t world : {2u, 3u, 1u, 5u}) {
    SCOPED_TRACE(fmt::format("{} ranks go on where {} were", world, saved_by));
    start(world);
    restore_all();
    expect_restored(step, saved_by);
    save_all(++step);
    saved_by = world;
  }
  auto checkpoint = Checkpoint::open(options().path);
  ASSERT_TRUE(checkpoint) << checkpoint.error().to_string();
  EXPECT_EQ(checkpoint->version().world, 5u);
  EXPECT_EQ(checkpoint->version().attempt, 5u) << "one for each start";
  for (const GlobalTensor& tensor : tensors_) {
    Bytes memory(tensor.whole.bytes.size());
    const OwnedTensor& whole = tensor.whole;
    const Target target{.name = whole.name, .dtype = whole.dtype, .shape = whole.shape, .data = memory.data()};
    ASSERT_TRUE(checkpoint->read({&target, 1}));
    EXPECT_EQ(memory, whole.bytes);
  }
  EXPECT_TRUE(checkpoint->verify()->damages.empty());
}

TEST_F(RestoreWorldsTest, DamageInABlockThatOneRankReadsMakesAllFallBack) {
  commit(1, 3);
  std::vector<GlobalTensor> first = tensors_;
  const std::string newest = commit(2, 3);
  flip_bit(newest + "/rank-00002.safetensors", 100'000, 1);
  tensors_ = std::move(first);
  start(2);
  restore_all();
  expect_restored(1, 3);
  for (const auto& rank : ranks_) {
    ASSERT_EQ((*rank->restored)->damaged.size(), 1u);
    EXPECT_NE((*rank->restored)->damaged[0].find("step 2: rank 1: "), std::string::npos)
        << (*rank->restored)->damaged[0];
  }
}

TEST_F(RestoreWorldsTest, ARecordThatIsGoneMakesAllFallBack) {
  commit(1, 3);
  std::vector<GlobalTensor> first = tensors_;
  std::filesystem::remove(commit(2, 3) + "/rank-00002.record");
  tensors_ = std::move(first);
  start(4);
  restore_all();
  expect_restored(1, 3);
}

}  // namespace restore_worlds_test
}  // namespace
}  // namespace slackwater::test
