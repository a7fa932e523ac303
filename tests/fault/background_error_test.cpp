// Trouble in the background while training goes on: many steps on a full, a failing, a slow and a hung disk. (One fault
// in each phase of a save: tests/unit/engine/fault_test.cpp.)
#include <chrono>
#include <filesystem>
#include <fstream>

#include "support/leaves_threads.hpp"
#include "support/small_mount.hpp"
#include "unit/engine/faulty_engine_fixture.hpp"

namespace slackwater::test {
namespace {

using std::chrono::milliseconds;

class BackgroundErrorTest : public FaultyEngineTest {
 protected:
  // Trains from one step to another as a trainer does, whatever becomes of the snapshots; how many failed.
  static std::size_t train(Engine& engine, Model& model, std::uint64_t first, std::uint64_t last) {
    std::vector<Snapshot> snapshots;
    for (std::uint64_t step = first; step <= last; ++step) {
      auto saved = engine.save(step, model.state());
      EXPECT_TRUE(saved) << "storage trouble reached the trainer: " << saved.error().to_string();
      if (saved && *saved) snapshots.push_back(std::move(**saved));
      static_cast<void>(engine.fence());
      model.update();
    }
    std::size_t failed = 0;
    for (Snapshot& snapshot : snapshots) failed += snapshot.wait(Level::kCommitted) ? 0 : 1;
    return failed;
  }
  void expect_only(Engine& engine, std::uint64_t step) {
    Reader reader;
    ASSERT_TRUE(engine.close());
    Engine again = open(options());
    EXPECT_EQ(restore(again, reader), step);
    for (const auto& entry : std::filesystem::directory_iterator(options().path)) {
      const std::string name = entry.path().filename();
      if (!name.starts_with("step-")) continue;
      EXPECT_TRUE(std::filesystem::exists(entry.path() / "manifest.json")) << "debris: " << name;
    }
  }
};

struct Trouble {
  const char* what;
  FsCall call;
  int sys_errno;
  ErrorKind kind;
};
class LastingTrouble : public BackgroundErrorTest, public ::testing::WithParamInterface<Trouble> {};

TEST_P(LastingTrouble, TrainingGoesOnTheErrorIsKeptAndTheDiskThatRecoversCommitsAgain) {
  Model model;
  model.add("w", 3 * kMiB + 5);
  model.add("b", 100);
  Engine engine = open_faulty(options());
  EXPECT_EQ(train(engine, model, 1, 2), 0u);
  ASSERT_TRUE(engine.wait(Level::kCommitted));

  fs_->fail(GetParam().call, GetParam().sys_errno, {.times = kAlways, .path = ".safetensors"});
  EXPECT_EQ(train(engine, model, 3, 10), 8u);
  EXPECT_EQ(steps(engine), (std::vector<std::uint64_t>{1, 2})) << "a failure must not cost what is committed";
  ASSERT_TRUE(engine.background_error());
  const Status kept = engine.wait(Level::kCommitted);
  ASSERT_FALSE(kept);
  EXPECT_EQ(kept.error().kind, GetParam().kind) << kept.error().to_string();
  EXPECT_NE(kept.error().message.find("step 3"), std::string::npos) << "not the first: " << kept.error().message;
  EXPECT_NE(kept.error().path.find("rank-00000.safetensors"), std::string::npos) << kept.error().path;
  EXPECT_EQ(engine.stats().snapshots_failed, 8u);

  fs_->clear_faults();
  EXPECT_EQ(train(engine, model, 11, 12), 0u);
  EXPECT_TRUE(engine.wait(Level::kCommitted));
  EXPECT_EQ(steps(engine), (std::vector<std::uint64_t>{11, 12}));
  expect_only(engine, 12);
}

INSTANTIATE_TEST_SUITE_P(Disks, LastingTrouble,
                         ::testing::Values(Trouble{"Full", FsCall::kAllocate, ENOSPC, ErrorKind::kNoSpace},
                                           Trouble{"FullWhileWriting", FsCall::kQueueWrite, ENOSPC,
                                                   ErrorKind::kNoSpace},
                                           Trouble{"Failing", FsCall::kQueueWrite, EIO, ErrorKind::kIo},
                                           Trouble{"FailingToSync", FsCall::kSyncData, EIO, ErrorKind::kIo}),
                         [](const auto& trouble) { return trouble.param.what; });

TEST_F(BackgroundErrorTest, ARealDiskThatIsFullCommitsAgainWhenThereIsRoom) {
  const SmallMount mount("tmpfs", "size=16m");
  if (!mount.mounted()) GTEST_SKIP() << "mounting is not permitted here";
  Model model;
  model.add("w", 2 * kMiB);
  Options small = options();
  small.path = mount / "run";
  Engine engine = open(small);
  EXPECT_EQ(train(engine, model, 1, 2), 0u);
  {
    std::ofstream ballast(mount / "ballast");
    const std::string block(kMiB, 'x');
    while (ballast.write(block.data(), static_cast<std::streamsize>(block.size())).flush()) {
    }
  }
  EXPECT_EQ(train(engine, model, 3, 6), 4u);
  const Status kept = engine.wait(Level::kCommitted);
  ASSERT_FALSE(kept);
  EXPECT_EQ(kept.error().kind, ErrorKind::kNoSpace) << kept.error().to_string();
  std::filesystem::remove(mount / "ballast");
  EXPECT_EQ(train(engine, model, 7, 8), 0u);
  EXPECT_TRUE(engine.wait(Level::kCommitted));
  EXPECT_EQ(steps(engine), (std::vector<std::uint64_t>{7, 8}));
}

TEST_F(BackgroundErrorTest, AHungDiskWithAFullPoolHoldsNothingUp) {
  Model small;  // one slab: it commits, however busy the machine is
  small.add("w", 1000);
  Model model;
  model.add("w", 6 * kMiB);  // the pool has two slabs
  Options impatient = options();
  impatient.stall_timeout = milliseconds(100);
  impatient.on_busy = OnBusy::kSkip;
  impatient.in_flight = 1;
  Engine engine = open_faulty(impatient);
  const std::uint64_t committed = commit_first(engine, small);
  ASSERT_TRUE(engine.wait(Level::kCommitted));

  Hung hung = save_hung(engine, committed + 1, model);
  const Status fenced = engine.fence();  // or it hangs, as the disk does
  ASSERT_FALSE(fenced);
  EXPECT_EQ(fenced.error().kind, ErrorKind::kTimeout) << fenced.error().to_string();
  expect_opened(hung, impatient.stall_timeout);

  model.update();  // training goes on
  for (std::uint64_t step = hung.step + 1; step < hung.step + 18; ++step) {
    auto saved = engine.save(step, model.state());
    ASSERT_TRUE(saved) << saved.error().to_string();
    EXPECT_FALSE(*saved) << "step " << step << " should have been skipped";
  }
  const Status waiting = engine.wait(Level::kCommitted, milliseconds(20));
  ASSERT_FALSE(waiting);
  EXPECT_EQ(waiting.error().kind, ErrorKind::kTimeout) << waiting.error().to_string();
  const Status closed = engine.close(milliseconds(20));
  EXPECT_FALSE(closed);
  EXPECT_EQ(list_versions(options().path)->back().step, committed);
}

TEST_F(BackgroundErrorTest, AHungSyncLeavesFenceSaveWaitAndCloseWorking) {
  Model model;
  model.add("w", kMiB);
  Options skipping = options();
  skipping.on_busy = OnBusy::kSkip;
  skipping.in_flight = 1;
  Engine engine = open_faulty(skipping);
  save_and_commit(engine, 1, model);
  ASSERT_TRUE(engine.wait(Level::kCommitted));

  fs_->hang(FsCall::kSyncData);
  Snapshot hung = save(engine, 2, model);
  fs_->wait_hung(1);
  EXPECT_TRUE(hung.fence()) << "the copies are done: the disk has nothing to do with the fence";
  model.update();
  auto saved = engine.save(3, model.state());
  ASSERT_TRUE(saved);
  EXPECT_FALSE(*saved);
  const Status waiting = hung.wait(Level::kDurable, milliseconds(20));
  ASSERT_FALSE(waiting);
  EXPECT_EQ(waiting.error().kind, ErrorKind::kTimeout);
  EXPECT_NE(waiting.error().message.find("step 2 is not durable"), std::string::npos) << waiting.error().message;
  const Status closed = engine.close(milliseconds(20));
  ASSERT_FALSE(closed);
  EXPECT_EQ(closed.error().kind, ErrorKind::kTimeout) << closed.error().to_string();
  EXPECT_NE(closed.error().message.find("step 2"), std::string::npos) << closed.error().message;
  EXPECT_EQ(list_versions(options().path)->back().step, 1u);
}

TEST_F(BackgroundErrorTest, ADiskThatHangsBeforeTheFirstByteOpensTheFence) {
  Model small;  // one slab: it commits, however busy the machine is
  small.add("w", 1000);
  Model model;
  model.add("w", kMiB);
  Options impatient = options();
  impatient.stall_timeout = milliseconds(50);
  Engine engine = open_faulty(impatient);
  const std::uint64_t step = commit_first(engine, small);
  ASSERT_TRUE(engine.wait(Level::kCommitted));
  fs_->hang(FsCall::kMakeDirectory);
  Snapshot hung = save(engine, step + 1, model);
  const Status fenced = hung.fence();
  ASSERT_FALSE(fenced);
  EXPECT_EQ(fenced.error().kind, ErrorKind::kTimeout) << fenced.error().to_string();
  EXPECT_TRUE(hung.released());
  fs_->release_hung();
  EXPECT_FALSE(engine.wait(Level::kCommitted));
  save_and_commit(engine, step + 2, small);
}

TEST_F(BackgroundErrorTest, ASlowDiskMeansFewerCheckpointsAndNoErrors) {
  Model model;
  model.add("w", kMiB);
  Options skipping = options();
  skipping.on_busy = OnBusy::kSkip;
  skipping.in_flight = 1;
  Engine engine = open_faulty(skipping);
  constexpr std::uint64_t kRounds = 10;
  for (std::uint64_t round = 0; round < kRounds; ++round) {
    fs_->hang(FsCall::kSyncData);  // for the next five steps
    for (std::uint64_t step = 5 * round + 1; step <= 5 * round + 5; ++step) {
      auto saved = engine.save(step, model.state());
      ASSERT_TRUE(saved) << saved.error().to_string();
      static_cast<void>(engine.fence());
      model.update();
    }
    fs_->release_hung();
    const Status waited = engine.wait(Level::kCommitted);
    ASSERT_TRUE(waited) << waited.error().to_string();
  }
  EXPECT_EQ(engine.stats().snapshots_committed, kRounds);
  EXPECT_EQ(engine.stats().snapshots_skipped, 4 * kRounds);
  EXPECT_EQ(engine.stats().snapshots_failed, 0u);
}

// What a missing fence would do, in the one case the samples of the torn-capture guard do not see: comparing bytes, as
// all harnesses here do, tells.
TEST_F(BackgroundErrorTest, AFenceThatIsLeftOutIsSeenByComparingBytes) {
  Model model;
  Bytes& w = model.add("w", 6 * kMiB);
  Engine engine = open_faulty(options());
  fs_->hold_writes();
  Snapshot snapshot = save(engine, 1, model);
  const auto at_save = model.copy();
  fs_->wait_held(2);            // four slabs are still to be copied
  w[5 * kMiB] ^= std::byte{1};  // the mutation: an update of one byte, without a fence
  fs_->release_writes();
  const Status committed = snapshot.wait(Level::kCommitted);
  if (!committed) {  // a sample happened to lie there
    EXPECT_EQ(committed.error().kind, ErrorKind::kTorn) << committed.error().to_string();
    return;
  }
  Reader reader;
  ASSERT_EQ(restore(engine, reader), 1u);
  EXPECT_NE(reader.read, at_save);
}

}  // namespace
}  // namespace slackwater::test
