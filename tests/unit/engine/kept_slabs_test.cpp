#include "engine/kept_slabs.hpp"

#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "engine/snapshot_impl.hpp"
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
void set_plan(KeptVersion& version, std::uint64_t step,
              std::function<Status(const RecordReference&, StagedVersion&)> add_vote = [](auto&, auto&) {
                return Status();
              }) {
  Record record;
  record.identity = {.step = step, .attempt = 1, .rank = 0, .world = 2};
  version.set_plan(
      {.member = "me", .record = record, .index = {}, .manifest = {}, .add_vote = std::move(add_vote)});
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

// A step is staged in the slabs 2 and 0. Slab 3 has no pages yet, and a copy of the next step waits for a slab. It comes
// by itself, so the staged step, which is nowhere else, must not go for it.
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
                 .on_starved = [&] { slabs.make_room(); }}).value();
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
