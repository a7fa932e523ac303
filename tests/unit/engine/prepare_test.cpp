// prepare() and restore() make the pool before the first save needs it.
#include <atomic>

#include <gmock/gmock.h>

#include "unit/engine/engine_fixture.hpp"

namespace slackwater::test {
namespace {

using namespace std::chrono_literals;

class PrepareTest : public EngineTest {
 protected:
  Options automatic() {
    Options result = options();
    result.pool_bytes = 0;
    return result;
  }
};

TEST_F(PrepareTest, MakesAnAutomaticPoolOfTheSizeOfTheState) {
  Model model;
  model.add("w", 5 * kMiB);
  Engine engine = open(automatic());
  EXPECT_FALSE(engine.wait_prepared(0ms).value()) << "there is none yet";
  ASSERT_TRUE(engine.prepare(model.state()));
  EXPECT_TRUE(engine.wait_prepared(60s).value());
  const std::uint64_t prepared = engine.stats().pool_bytes;
  EXPECT_GE(prepared, 5 * kMiB);
  save_and_commit(engine, 1, model);
  EXPECT_EQ(engine.stats().pool_bytes, prepared) << "the save uses that pool";
}

TEST_F(PrepareTest, AgainOrForAnotherSizeChangesNothing) {
  Model small;
  small.add("w", 3 * kMiB);
  Model large;
  large.add("w", 9 * kMiB);
  Engine engine = open(automatic());
  ASSERT_TRUE(engine.prepare(small.state()));
  const std::uint64_t prepared = engine.stats().pool_bytes;
  ASSERT_TRUE(engine.prepare(small.state()));
  ASSERT_TRUE(engine.prepare(large.state()));
  EXPECT_EQ(engine.stats().pool_bytes, prepared);
}

TEST_F(PrepareTest, APoolPreparedForASmallerStateIsMadeAgainAtTheFirstSaveOnly) {
  Model small;
  small.add("w", 3 * kMiB);
  Model large;
  large.add("w", 9 * kMiB);
  Model larger;
  larger.add("w", 20 * kMiB);
  Engine engine = open(automatic());
  ASSERT_TRUE(engine.prepare(small.state()));
  save_and_commit(engine, 1, large);
  const std::uint64_t pool_bytes = engine.stats().pool_bytes;
  EXPECT_GE(pool_bytes, 9 * kMiB);
  save_and_commit(engine, 2, larger);
  EXPECT_EQ(engine.stats().pool_bytes, pool_bytes);
  Reader reader;
  EXPECT_EQ(restore(engine, reader), 2u);
  EXPECT_EQ(reader.read, larger.copy());
}

TEST_F(PrepareTest, ASizeThatWasGivenIsKept) {
  Model model;
  model.add("w", 9 * kMiB);
  Engine engine = open(options());
  ASSERT_TRUE(engine.prepare(model.state()));
  EXPECT_TRUE(engine.wait_prepared(60s).value());
  save_and_commit(engine, 1, model);
  EXPECT_EQ(engine.stats().pool_bytes, options().pool_bytes);
}

TEST_F(PrepareTest, MisuseIsTheErrorThatSaveReturns) {
  Model model;
  model.add("w", kMiB);
  State twice = model.state();
  twice.tensors.push_back(twice.tensors.front());
  Engine engine = open(automatic());
  const Status refused = engine.prepare(twice);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().to_string(), engine.save(1, twice).error().to_string());
  EXPECT_EQ(engine.stats().pool_bytes, 0u);
  ASSERT_TRUE(engine.close());
  EXPECT_EQ(engine.prepare(model.state()).error().kind, ErrorKind::kClosed);
  EXPECT_EQ(engine.wait_prepared(0ms).error().kind, ErrorKind::kClosed);
}

TEST_F(PrepareTest, RestorePreparesThePoolForWhatItPlaces) {
  Model model;
  model.add("w", 5 * kMiB);
  {
    Engine engine = open(automatic());
    save_and_commit(engine, 1, model);
  }
  Engine engine = open(automatic());
  Reader reader;
  EXPECT_EQ(restore(engine, reader), 1u);
  EXPECT_TRUE(engine.wait_prepared(60s).value());
  const std::uint64_t prepared = engine.stats().pool_bytes;
  EXPECT_GE(prepared, 5 * kMiB);
  save_and_commit(engine, 2, model);
  EXPECT_EQ(engine.stats().pool_bytes, prepared);
}

// The last slab is not ready before the log has said so, and the log is made to wait.
TEST_F(PrepareTest, StepsAreSkippedUntilThePoolIsReadyIfBusyMeansSkip) {
  std::atomic<bool> go_on = false;
  Options skipping = automatic();
  skipping.on_busy = OnBusy::kSkip;
  skipping.log = [&](LogLevel, std::string_view line) {
    if (line.find("the pool is ready") != std::string_view::npos) go_on.wait(false);
  };
  Model model;
  model.add("w", 5 * kMiB);
  Engine engine = open(skipping);
  ASSERT_TRUE(engine.prepare(model.state()));
  EXPECT_FALSE(engine.save(1, model.state()).value().has_value());
  EXPECT_EQ(engine.stats().snapshots_skipped, 1u);
  State wanted = model.state();
  wanted.never_skip = true;
  auto never_skipped = engine.save(2, std::move(wanted)).value();
  ASSERT_TRUE(never_skipped.has_value());
  ASSERT_TRUE(never_skipped->fence()) << "slabs that are there are used again and again";
  go_on = true;
  go_on.notify_all();
  ASSERT_TRUE(never_skipped->wait(Level::kCommitted));
  save_and_commit(engine, 3, model);
}

TEST_F(PrepareTest, CloseWhileThePoolIsBeingMade) {
  Model model;
  model.add("w", 8 * kMiB);
  for (int i = 0; i < 5; ++i) {
    Engine engine = open(automatic());
    ASSERT_TRUE(engine.prepare(model.state()));
    ASSERT_TRUE(engine.close());
    EXPECT_GE(engine.stats().pool_bytes, 8 * kMiB);
  }
}

}  // namespace
}  // namespace slackwater::test
