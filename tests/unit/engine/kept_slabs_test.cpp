#include "engine/kept_slabs.hpp"

#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "engine/snapshot_impl.hpp"
#include "support/no_threads.hpp"
#include "unit/keeper/staged.hpp"

namespace slackwater::test {
namespace {

constexpr RegionShape kTwoRanks{.slab_bytes = 1u << 20, .slab_count = 4, .rank = 0, .world = 2};

std::shared_ptr<Snapshot::Impl> make_snapshot(std::uint64_t step) {
  return std::make_shared<Snapshot::Impl>(Snapshot::Impl::Spec{.step = step,
                                                               .save_began = std::chrono::steady_clock::now(),
                                                               .stall_timeout = std::chrono::minutes(1),
                                                               .sealed_by_caller = false},
                                          std::make_shared<EngineStatus>());
}

// What follows for a version of no files: the next call can be set_staged().
void set_plan(
    KeptVersion& version, std::uint64_t step,
    std::function<Status(const RecordReference&, StagedVersion&)> add_vote = [](auto&, auto&) { return Status(); }) {
  Record record;
  record.identity = {.step = step, .attempt = 1, .rank = 0, .world = 2};
  version.set_plan({.member = "me", .record = record, .index = {}, .manifest = {}, .add_vote = std::move(add_vote)});
}

TEST(KeptSlabs, AVersionThatCannotBeDescribedIsNotKeptAndTheNextOneIs) {
  const RegionShape& shape = kTwoRanks;
  const SharedRegion shared(shape);
  const auto region = std::make_shared<Region>(shared.trainer);
  KeptSlabs slabs(region, 1, Log([](LogLevel, std::string_view) {}));
  const auto pool = Pool::create(shape.slab_bytes, shape.slab_count).value();
  slabs.attach(*pool);
  const auto stage_with = [&](std::uint64_t step, const auto& add_vote) {
    const auto snapshot = make_snapshot(step);
    const auto version = slabs.begin({step, 1}, SnapshotLayout(), snapshot);
    set_plan(*version, step, add_vote);
    version->set_staged();
    EXPECT_TRUE(snapshot->wait(Level::kStaged, {}));
  };
  // With a large state, this is where memory runs out.
  stage_with(1, [](const RecordReference&, StagedVersion&) -> Status { throw std::bad_alloc(); });
  EXPECT_TRUE(region->kept().empty());
  stage_with(2, [](const RecordReference&, StagedVersion&) { return Status(); });
  ASSERT_EQ(region->kept().size(), 1u);
  EXPECT_EQ(region->kept()[0].version.name, (VersionName{2, 1}));
  slabs.detach();
}

// Whoever finds the error tells the version first, and the snapshot a moment later.
TEST(KeptSlabs, AStepThatFailsIsNeverReportedAsStaged) {
  const SharedRegion shared(kTwoRanks);
  const auto region = std::make_shared<Region>(shared.trainer);
  KeptSlabs slabs(region, 1, Log([](LogLevel, std::string_view) {}));
  const auto pool = Pool::create(kTwoRanks.slab_bytes, kTwoRanks.slab_count).value();
  slabs.attach(*pool);
  const auto fails = make_snapshot(1);
  slabs.begin({1, 1}, SnapshotLayout(), fails)->fail();
  // sw-memory takes one after the other: once this one is staged, it is done with the other.
  const auto next = make_snapshot(2);
  const auto version = slabs.begin({2, 1}, SnapshotLayout(), next);
  set_plan(*version, 2);
  version->set_staged();
  ASSERT_TRUE(next->wait(Level::kStaged, {}));
  EXPECT_EQ(fails->progress().level, Level::kCaptured);
  slabs.detach();
}

TEST(KeptSlabs, AStagedStepIsNotDroppedForManyThatAreInFlight) {
  const SharedRegion shared;
  const auto region = std::make_shared<Region>(shared.trainer);
  Region staged = shared.trainer;
  ASSERT_TRUE(staged.publish(staged.begin({1, 1}).value(), stage(staged, {1, 1}), "me"));
  KeptSlabs slabs(region, 1, Log([](LogLevel, std::string_view) {}));
  for (std::uint64_t step = 2; step < 2 + 2 * Region::kEntries; ++step)
    EXPECT_NE(slabs.begin({step, 1}, SnapshotLayout(), nullptr), nullptr);
  ASSERT_EQ(region->kept().size(), 1u);
  EXPECT_EQ(region->kept()[0].version.name.step, 1u);
}

SnapshotLayout layout_of(std::uint64_t slabs) {
  SnapshotLayout layout;
  layout.parts.emplace_back("rank-00000.safetensors", std::string(slabs * kSmallShape.slab_bytes, ' '),
                            std::vector<Extent>());
  layout.size_bytes = layout.parts[0].size_bytes();
  return layout;
}

// A rank may be killed when it has staged step 2, and another one when it has not.
TEST(KeptSlabs, RanksThatStageAStepAtDifferentTimesHaveOneInCommon) {
  const SharedRegion shared(kTwoRanks);
  const auto region = std::make_shared<Region>(shared.trainer);
  KeptSlabs slabs(region, 1, Log([](LogLevel, std::string_view) {}));
  const auto pool = Pool::create(kTwoRanks.slab_bytes, kTwoRanks.slab_count).value();
  slabs.attach(*pool);
  const auto stage_step = [&](std::uint64_t step) {
    const auto snapshot = make_snapshot(step);
    const auto version = slabs.begin({step, 1}, SnapshotLayout(), snapshot);
    set_plan(*version, step);
    version->set_staged();
    EXPECT_TRUE(snapshot->wait(Level::kStaged, {}));
  };
  stage_step(1);
  stage_step(2);
  ASSERT_EQ(region->kept().size(), 2u);
  EXPECT_EQ(region->kept()[0].version.name.step, 1u);
  stage_step(3);
  ASSERT_EQ(region->kept().size(), 2u) << "no more than that";
  EXPECT_EQ(region->kept()[0].version.name.step, 2u);
  slabs.detach();
}

// Step 1 is staged in the slabs 2 and 0, and not on disk. All pages of the pool are there.
class KeptSlabsTest : public ::testing::Test {
 protected:
  KeptSlabsTest() {
    Region staged = shared_.trainer;
    EXPECT_TRUE(staged.publish(staged.begin({1, 1}).value(), stage(staged, {1, 1}), "me"));
    slabs_ = std::make_unique<KeptSlabs>(region_, 1, Log([](LogLevel, std::string_view) {}));
    pool_ = Pool::create(kSmallShape.slab_bytes, kSmallShape.slab_count, {}, -1, {},
                         PoolMemory{.bytes = region_->slabs(),
                                    .owner = region_,
                                    .reserved = slabs_->reserved(),
                                    .on_starved = [this] { slabs_->make_room(); }})
                .value();
    slabs_->attach(*pool_);
    pool_->wait_touched();
  }
  ~KeptSlabsTest() override { slabs_->detach(); }

  struct Begun {
    std::shared_ptr<Snapshot::Impl> snapshot;
    std::shared_ptr<KeptVersion> version;
  };
  [[nodiscard]] Begun begin(std::uint64_t step, std::uint64_t slabs) {
    const auto snapshot = make_snapshot(step);
    return {snapshot, slabs_->begin({step, 1}, layout_of(slabs), snapshot)};
  }
  // Its copies fill them, and they wait for the disk.
  [[nodiscard]] std::vector<Lease> fill(const Begun& begun, std::uint64_t slabs) {
    std::vector<Lease> leases;
    for (std::uint64_t chunk = 0; chunk < slabs; ++chunk) {
      leases.push_back(pool_->acquire(std::chrono::minutes(1), {}).value());
      begun.version->add_slab(0, chunk, leases.back().index());
    }
    return leases;
  }
  // The disk goes on: its last block was checksummed.
  static void finish(const Begun& begun) {
    Record record;
    record.identity = {.step = begun.snapshot->step(), .attempt = 1, .rank = 0, .world = 1};
    record.files = {FileRecord{.name = "rank-00000.safetensors"}};
    begun.version->set_digests(0, {});
    begun.version->set_plan({.member = "me", .record = record, .index = {}, .manifest = {}});
    begun.version->set_staged();
    EXPECT_TRUE(begun.snapshot->wait(Level::kStaged, std::chrono::minutes(1)));
  }
  [[nodiscard]] std::vector<std::uint64_t> kept_steps() const {
    std::vector<std::uint64_t> steps;
    for (const Region::Kept& kept : region_->kept()) steps.push_back(kept.version.name.step);
    return steps;
  }
  using Steps = std::vector<std::uint64_t>;

  const SharedRegion shared_;
  const std::shared_ptr<Region> region_ = std::make_shared<Region>(shared_.trainer);
  std::unique_ptr<KeptSlabs> slabs_;
  std::unique_ptr<Pool> pool_;
};

TEST_F(KeptSlabsTest, AStagedStepIsNotDroppedForAStepThatCanWaitForTheOneBefore) {
  const Begun second = begin(2, 2);
  std::vector<Lease> leases = fill(second, 2);
  const Begun third = begin(3, 2);
  slabs_->make_room();  // as a copy of step 3 does
  EXPECT_EQ(kept_steps(), Steps{1}) << "step 2 waits for the disk, and may do so for ever";
  auto waiting = std::async(std::launch::async, [&] { return fill(third, 1); });
  finish(second);
  EXPECT_EQ(waiting.get().size(), 1u);
  EXPECT_EQ(kept_steps(), Steps{2});
  third.version->fail();
}

// Its index could not be made, for example. The writer does not know of that yet, and goes on.
TEST_F(KeptSlabsTest, AStepThatFailsMayStillBeChecksummed) {
  const Begun second = begin(2, 1);
  second.version->fail();
  const Begun third = begin(3, 1);
  finish(third);  // sw-memory takes one after the other
  second.version->set_digests(0, {7});
  EXPECT_EQ(kept_steps(), Steps{3});
}

TEST_F(KeptSlabsTest, AStepThatIsOnDiskMakesRoomAtOnce) {
  const Begun second = begin(2, 2);
  const std::vector<Lease> leases = fill(second, 2);
  const Begun third = begin(3, 2);
  auto waiting = std::async(std::launch::async, [&] { return fill(third, 2); });
  while (pool_->waiting_count() == 0) std::this_thread::yield();
  slabs_->mark_committed({1, 1});
  EXPECT_EQ(waiting.get().size(), 2u);
  EXPECT_EQ(kept_steps(), Steps());
  second.version->fail();
  third.version->fail();
}

TEST_F(KeptSlabsTest, AStagedStepMakesRoomIfThereIsNoneForTheNextOtherwise) {
  const Begun second = begin(2, 3);
  const std::vector<Lease> leases = fill(second, 3);
  EXPECT_EQ(kept_steps(), Steps());
  second.version->fail();
}

TEST_F(KeptSlabsTest, WithoutAThreadNoSlabStaysWithAPoolThatEnds) {
  slabs_->detach();
  pool_ = Pool::create(kSmallShape.slab_bytes, kSmallShape.slab_count, {}, -1, {},
                       PoolMemory{.bytes = region_->slabs(), .owner = region_, .reserved = slabs_->reserved()})
              .value();
  pool_->wait_touched();
  {
    const NoThreads no_threads;
    EXPECT_THROW(slabs_->attach(*pool_), std::system_error);
  }
  EXPECT_EQ(pool_->free_count(), 4u);
  EXPECT_EQ(kept_steps(), Steps{1});
}

// A step is staged in the slabs 2 and 0. Slab 3 has no pages yet, and a copy of the next step waits for a slab. It
// comes by itself, so the staged step, which is nowhere else, must not go for it.
TEST(KeptSlabs, AStagedStepIsNotDroppedForASlabThatIsStillBeingTouched) {
  const SharedRegion shared;
  const auto region = std::make_shared<Region>(shared.trainer);
  Region staged = shared.trainer;
  ASSERT_TRUE(staged.publish(staged.begin({1, 1}).value(), stage(staged, {1, 1}), "me"));
  KeptSlabs slabs(region, 1, Log([](LogLevel, std::string_view) {}));
  std::promise<void> go;
  const std::shared_future<void> gone = go.get_future().share();
  const auto pool = Pool::create(
                        kSmallShape.slab_bytes, kSmallShape.slab_count,
                        [&](int index, std::span<std::byte>) {
                          if (index == 3) gone.wait();
                        },
                        -1, {},
                        PoolMemory{.bytes = region->slabs(),
                                   .owner = region,
                                   .reserved = slabs.reserved(),
                                   .on_starved = [&] { slabs.make_room(); }})
                        .value();
  slabs.attach(*pool);
  std::vector<Lease> leases;
  leases.push_back(pool->acquire(std::chrono::hours(1), {}).value());  // slab 1
  slabs.make_room();                                                   // as a copy that finds no free slab does
  EXPECT_EQ(region->kept().size(), 1u);

  go.set_value();
  leases.push_back(pool->acquire(std::chrono::hours(1), {}).value());  // slab 3
  EXPECT_EQ(region->kept().size(), 1u);
  leases.push_back(pool->acquire(std::chrono::hours(1), {}).value());  // there is no other way now
  EXPECT_TRUE(region->kept().empty());
  leases.clear();
  slabs.detach();
}

}  // namespace
}  // namespace slackwater::test
