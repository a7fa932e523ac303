#include "engine/kept_slabs.hpp"

#include <chrono>
#include <new>

#include <gtest/gtest.h>

#include "engine/snapshot_impl.hpp"
#include "unit/keeper/staged.hpp"

namespace slackwater::test {
namespace {

TEST(KeptSlabs, AVersionThatCannotBeDescribedIsNotKeptAndTheNextOneIs) {
  RegionShape shape = kSmallShape;
  shape.world = 2;
  const SharedRegion shared(shape);
  const auto region = std::make_shared<Region>(shared.trainer);
  KeptSlabs slabs(region, 1, Log([](LogLevel, std::string_view) {}));
  const auto pool = Pool::create(shape.slab_bytes, shape.slab_count).value();
  slabs.attach(*pool);
  const auto stage_with = [&](std::uint64_t step, const auto& add_vote) {
    const auto snapshot =
        std::make_shared<Snapshot::Impl>(Snapshot::Impl::Spec{.step = step,
                                                              .save_began = std::chrono::steady_clock::now(),
                                                              .stall_timeout = std::chrono::minutes(1),
                                                              .sealed_by_caller = false},
                                         std::make_shared<EngineStatus>());
    const auto version = slabs.begin({step, 1}, SnapshotLayout(), snapshot);
    Record record;
    record.identity = {.step = step, .attempt = 1, .rank = 0, .world = 2};
    version->set_plan({.member = "me", .record = record, .index = {}, .manifest = {}, .add_vote = add_vote});
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

}  // namespace
}  // namespace slackwater::test
