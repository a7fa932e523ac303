// Pins of steps in flight, and the best checkpoints by a metric.
#include <filesystem>
#include <limits>

#include "unit/engine/faulty_engine_fixture.hpp"
#include "version/names.hpp"

namespace slackwater::test {
namespace {

using Steps = std::vector<std::uint64_t>;

class PinsTest : public FaultyEngineTest {
 protected:
  PinsTest() { model_.add("w", 100); }

  Options keep_one() {
    Options options = EngineTest::options();
    options.keep = 1;
    return options;
  }
  // Not committed before seal().
  Snapshot save_unsealed(Engine& engine, std::uint64_t step) {
    State state = model_.state();
    state.sealed_by_caller = true;
    auto snapshot = engine.save(step, std::move(state));
    if (!snapshot) throw std::runtime_error(snapshot.error().to_string());
    return std::move(**snapshot);
  }
  void commit_with(Engine& engine, std::uint64_t step, const std::string& metric, double value) {
    State state = model_.state();
    state.metrics = {{metric, value}};
    auto snapshot = engine.save(step, std::move(state));
    ASSERT_TRUE(snapshot) << snapshot.error().to_string();
    ASSERT_TRUE((*snapshot)->wait(Level::kCommitted));
  }
  // Deletes in the background, and remove() waits for that.
  static Steps settled(Engine& engine) {
    static_cast<void>(engine.wait(Level::kCommitted));
    EXPECT_EQ(engine.remove(999'999).error().kind, ErrorKind::kNotFound);
    return steps(engine);
  }
  [[nodiscard]] bool pin_exists(const VersionName& version) {
    return std::filesystem::exists(options().path + "/" + kControlDirectory + "/" + pin_file(version));
  }

  Model model_;
};

TEST_F(PinsTest, AStepIsPinnedByItsSave) {
  Engine engine = open(keep_one());
  State state = model_.state();
  state.pin = true;
  ASSERT_TRUE(engine.save(1, std::move(state)));
  for (std::uint64_t step = 2; step <= 4; ++step) save_and_commit(engine, step, model_);
  EXPECT_EQ(settled(engine), (Steps{1, 4}));
  EXPECT_TRUE(engine.versions().front().pinned);
}

TEST_F(PinsTest, AStepInFlightIsPinnedWhenItIsCommitted) {
  Engine engine = open(keep_one());
  Snapshot snapshot = save_unsealed(engine, 1);
  ASSERT_TRUE(engine.pin(1));
  snapshot.seal();
  for (std::uint64_t step = 2; step <= 4; ++step) save_and_commit(engine, step, model_);
  EXPECT_EQ(settled(engine), (Steps{1, 4}));
}

// Killed between the two, a run must not be left with a commit that the next start may delete.
TEST_F(PinsTest, ThePinIsThereBeforeTheDecision) {
  Engine engine = open_faulty(keep_one());
  Snapshot snapshot = save_unsealed(engine, 1);
  ASSERT_TRUE(engine.pin(1));
  fs_->hang(FsCall::kLink, {.path = kManifestName});
  snapshot.seal();
  fs_->wait_hung(1);
  EXPECT_TRUE(pin_exists({1, 1}));
  fs_->release_hung();
  ASSERT_TRUE(snapshot.wait(Level::kCommitted));
}

TEST_F(PinsTest, APinThatComesWhileTheStepIsDecidedIsThereBeforeAnybodyIsTold) {
  Engine engine = open_faulty(keep_one());
  fs_->hang(FsCall::kLink, {.path = kManifestName});
  Snapshot snapshot = save(engine, 1, model_);
  fs_->wait_hung(1);
  ASSERT_TRUE(engine.pin(1));
  EXPECT_FALSE(pin_exists({1, 1}));
  fs_->release_hung();
  ASSERT_TRUE(snapshot.wait(Level::kCommitted));
  EXPECT_TRUE(pin_exists({1, 1}));
  for (std::uint64_t step = 2; step <= 4; ++step) save_and_commit(engine, step, model_);
  EXPECT_EQ(settled(engine), (Steps{1, 4}));
}

TEST_F(PinsTest, AStepThatFailsLeavesNoPinAndIsReported) {
  Engine engine = open(keep_one());
  Snapshot snapshot = save_unsealed(engine, 1);
  ASSERT_TRUE(engine.pin(1));
  snapshot.seal({"w"});
  EXPECT_FALSE(snapshot.wait(Level::kCommitted));
  const Status waited = engine.wait(Level::kCommitted);
  ASSERT_FALSE(waited);
  EXPECT_NE(waited.error().message.find("step 1 was not checkpointed"), std::string::npos);
  EXPECT_FALSE(engine.pin(1));
  save_and_commit(engine, 2, model_);
  EXPECT_EQ(settled(engine), (Steps{2}));
  EXPECT_FALSE(pin_exists({1, 1}));
}

TEST_F(PinsTest, AStepWhosePinCannotBeWrittenIsCommittedAndTheTroubleReported) {
  Engine engine = open_faulty(keep_one());
  Snapshot snapshot = save_unsealed(engine, 1);
  ASSERT_TRUE(engine.pin(1));
  fs_->fail(FsCall::kOpen, EIO, {.times = 100, .path = "pin-"});
  snapshot.seal();
  EXPECT_TRUE(snapshot.wait(Level::kCommitted));
  const Status waited = engine.wait(Level::kCommitted);
  ASSERT_FALSE(waited);
  EXPECT_NE(waited.error().message.find("step 1 is committed, but could not be pinned"), std::string::npos);
}

TEST_F(PinsTest, TheBestStayAlsoAfterARestart) {
  Options best = keep_one();
  best.keep_best = {.metric = "loss", .count = 2};
  {
    Engine engine = open(best);
    const double losses[] = {0.5, 0.2, 0.9, 0.3, 0.7};
    for (std::uint64_t step = 1; step <= 5; ++step) commit_with(engine, step, "loss", losses[step - 1]);
    EXPECT_EQ(settled(engine), (Steps{2, 4, 5}));
    ASSERT_TRUE(engine.close());
  }
  Engine engine = open(best);
  Reader reader;
  ASSERT_EQ(restore(engine, reader), 5u);
  commit_with(engine, 6, "loss", 0.25);
  commit_with(engine, 7, "loss", std::numeric_limits<double>::quiet_NaN());
  commit_with(engine, 8, "speed", 0.01);
  EXPECT_EQ(settled(engine), (Steps{2, 6, 8}));
}

TEST_F(PinsTest, MetricsThatWouldFillAManifestAreRefused) {
  Engine engine = open(keep_one());
  State many = model_.state();
  for (std::size_t i = 0; i <= kMaxMetrics; ++i) many.metrics[std::to_string(i)] = 1;
  EXPECT_EQ(engine.save(1, std::move(many)).error().kind, ErrorKind::kInvalidArgument);
  State longest = model_.state();
  longest.metrics[std::string(70'000, 'a')] = 1;
  EXPECT_EQ(engine.save(1, std::move(longest)).error().kind, ErrorKind::kInvalidArgument);
}

TEST_F(PinsTest, TheOptionForTheBestIsRead) {
  Options some;
  ASSERT_TRUE(set_option(some, "keep_best", "max:3:eval:acc"));
  EXPECT_EQ(some.keep_best.metric, "eval:acc");
  EXPECT_EQ(some.keep_best.count, 3u);
  EXPECT_TRUE(some.keep_best.highest);
  for (const char* wrong : {"loss", "min:loss", "min:0:loss", "min:3:", "low:3:loss", "min:x:loss", "min:-1:loss"})
    EXPECT_FALSE(set_option(some, "keep_best", wrong)) << wrong;
  ASSERT_TRUE(set_option(some, "keep_best", ""));
  EXPECT_EQ(some.keep_best.count, 0u);
}

}  // namespace
}  // namespace slackwater::test
