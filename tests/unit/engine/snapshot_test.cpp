// The state machine of one snapshot, without an engine around it.
#include <thread>

#include <gtest/gtest.h>

#include "engine/snapshot_impl.hpp"

namespace slackwater::test {
namespace {

std::shared_ptr<Snapshot::Impl> snapshot(bool sealed_by_caller) {
  return std::make_shared<Snapshot::Impl>(Snapshot::Impl::Spec{.step = 1,
                                                               .save_began = std::chrono::steady_clock::now(),
                                                               .stall_timeout = std::chrono::seconds(60),
                                                               .sealed_by_caller = sealed_by_caller},
                                          std::make_shared<SharedFacts>());
}

// The commit thread may look at the very moment the caller says that a tensor was torn: it must never find the snapshot sealed and well.
TEST(SnapshotStates, DecisionThatMeetsATornSealAlwaysSeesTheError) {
  for (int i = 0; i < 2000; ++i) {
    const auto torn = snapshot(true);
    std::optional<Error> seen;
    std::thread decider([&] { seen = torn->begin_decision(); });
    torn->seal("w");
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
  sealed->seal({});
  decider.join();
  EXPECT_FALSE(seen.has_value());
}

TEST(SnapshotStates, NothingChangesTheOutcomeOnceTheDecisionHasBegun) {
  const auto decided = snapshot(false);
  ASSERT_FALSE(decided->begin_decision().has_value());
  decided->fail(Error{.kind = ErrorKind::kClosed, .message = "too late", .path = {}});
  decided->fail_torn("w");
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

TEST(SnapshotStates, FenceOfAHostSnapshotOpensWhenTheSourcesAreReleased) {
  const auto staged = snapshot(false);
  std::thread copier([&] {
    staged->reach(Level::kStaged);
    staged->release_sources();
  });
  EXPECT_TRUE(staged->fence({}));
  copier.join();
  EXPECT_TRUE(staged->released());
  EXPECT_EQ(staged->stats().host_fences, 1u);
}

}  // namespace
}  // namespace slackwater::test
