// The state machine of one snapshot, without an engine around it.
#include <future>
#include <thread>

#include <gtest/gtest.h>

#include "engine/snapshot_impl.hpp"

namespace slackwater::test {
namespace {

using namespace std::chrono_literals;

std::shared_ptr<Snapshot::Impl> snapshot(bool sealed_by_caller, std::chrono::milliseconds stall_timeout = 60s) {
  return std::make_shared<Snapshot::Impl>(Snapshot::Impl::Spec{.step = 1,
                                                               .save_began = std::chrono::steady_clock::now(),
                                                               .stall_timeout = stall_timeout,
                                                               .sealed_by_caller = sealed_by_caller},
                                          std::make_shared<EngineStatus>());
}

// The commit thread may look at the very moment when the caller reports a torn tensor. It must never find the snapshot
// sealed and without an error.
TEST(SnapshotStates, DecisionThatMeetsATornSealAlwaysSeesTheError) {
  for (int i = 0; i < 2000; ++i) {
    const auto torn = snapshot(true);
    std::optional<Error> seen;
    std::thread decider([&] { seen = torn->begin_decision(); });
    torn->seal({"w"}, {});
    decider.join();
    ASSERT_TRUE(seen.has_value());
    ASSERT_EQ(seen->kind, ErrorKind::kTorn);
  }
}

TEST(SnapshotStates, DecisionWaitsForTheSeal) {
  const auto sealed = snapshot(true);
  std::atomic<bool> decided = false;
  std::optional<Error> seen;
  std::thread decider([&] {
    seen = sealed->begin_decision();
    decided = true;
  });
  EXPECT_FALSE(decided);
  sealed->seal({}, {});
  decider.join();
  EXPECT_FALSE(seen.has_value());
}

TEST(SnapshotStates, NothingChangesTheOutcomeOnceTheDecisionHasBegun) {
  const auto decided = snapshot(false);
  ASSERT_FALSE(decided->begin_decision().has_value());
  decided->fail(Error{.kind = ErrorKind::kClosed, .message = "too late", .path = {}});
  decided->fail_torn({"w"});
  decided->conclude({});
  EXPECT_TRUE(decided->wait(Level::kCommitted, std::chrono::milliseconds(0)));
  EXPECT_FALSE(decided->error().has_value());
}

TEST(SnapshotStates, FirstErrorStays) {
  const auto failed = snapshot(false);
  failed->fail(Error{.kind = ErrorKind::kIo, .message = "first", .path = {}});
  failed->fail(Error{.kind = ErrorKind::kClosed, .message = "second", .path = {}});
  failed->reach(Level::kDurable);
  EXPECT_EQ(failed->progress().level, Level::kCaptured);
  ASSERT_TRUE(failed->begin_decision().has_value());
  EXPECT_EQ(failed->error()->message, "first");
}

TEST(SnapshotStates, ALevelThatWasPassedIsNotReachedAgain) {
  const auto durable = snapshot(false);
  durable->reach(Level::kDurable);
  durable->reach(Level::kStaged);  // another thread may come late with its word
  EXPECT_EQ(durable->progress().level, Level::kDurable);
}

TEST(SnapshotStates, AnErrorAfterTheLevelWasReachedIsToldByWait) {
  const auto staged = snapshot(false);
  staged->reach(Level::kStaged);
  staged->fail(Error{.kind = ErrorKind::kIo, .message = "the disk", .path = {}});
  const Status status = staged->wait(Level::kStaged, 0ms);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().message, "the disk");
}

// With streams or without: when nothing moves, the snapshot is given up and training goes on.
TEST(SnapshotStates, FenceThatStallsGivesTheSnapshotUpAndOpens) {
  const StreamRef stream{.device = 0, .handle = 0};
  for (const std::vector<StreamRef>& streams : {std::vector<StreamRef>{}, {stream}}) {
    SCOPED_TRACE(streams.size());
    const auto stalled = snapshot(false, 30ms);
    std::promise<Error> cancelled;
    stalled->hooks().set_cancel([&](Error error) { cancelled.set_value(std::move(error)); });
    auto fenced = std::async(std::launch::async, [&] { return stalled->fence(streams); });
    const bool opened = fenced.wait_for(60s) == std::future_status::ready;
    EXPECT_TRUE(opened) << "training hangs at the fence";
    stalled->release_sources();  // lets a fence that hangs go
    const Status status = fenced.get();
    ASSERT_TRUE(opened && !status);
    EXPECT_EQ(status.error().kind, ErrorKind::kTimeout);
    auto error = cancelled.get_future();
    ASSERT_EQ(error.wait_for(0s), std::future_status::ready) << "copies may still read the tensors";
    EXPECT_EQ(error.get().kind, ErrorKind::kTimeout);
  }
}

// Slow storage is not storage that hangs: whatever moves begins the stall time anew.
TEST(SnapshotStates, EveryStepForwardCountsAsProgress) {
  const auto engine_status = std::make_shared<EngineStatus>();
  Snapshot::Impl moving({.step = 1, .save_began = std::chrono::steady_clock::now(), .stall_timeout = 60s},
                        engine_status);
  const auto begins_anew = [&](const auto& move) {
    const auto before = engine_status->last_progress.load();
    while (EngineStatus::Instant::now().time_since_epoch().count() == before) std::this_thread::yield();
    move();
    return engine_status->last_progress.load() > before;
  };
  EXPECT_TRUE(begins_anew([&] { moving.set_total(10); }));
  EXPECT_TRUE(begins_anew([&] { moving.add_staged(1); }));
  EXPECT_TRUE(begins_anew([&] { moving.add_written(1); }));
  EXPECT_TRUE(begins_anew([&] { moving.reach(Level::kStaged); }));
  EXPECT_TRUE(begins_anew([&] { moving.conclude({}); }));
}

TEST(SnapshotStates, FenceOfAHostSnapshotOpensWhenTheSourcesAreReleased) {
  const auto staged = snapshot(false);
  std::thread copier([&] {
    staged->reach(Level::kStaged);
    staged->release_sources();
  });
  EXPECT_TRUE(staged->fence({}));
  copier.join();
  EXPECT_TRUE(staged->wait_released(0s));
  EXPECT_EQ(staged->stats().host_fences, 1u);
}

}  // namespace
}  // namespace slackwater::test
