// Storage trouble: it fails one snapshot with a clear error, never the trainer, and the next one commits.
#include <filesystem>
#include <thread>

#include "support/child_process.hpp"
#include "support/leaves_threads.hpp"
#include "unit/engine/faulty_engine_fixture.hpp"

namespace slackwater::test {
namespace {

using FaultTest = FaultyEngineTest;

struct Fault {
  const char* what;
  FsCall call;
  int sys_errno;
  ErrorKind kind;
  const char* path;
};

class EachFault : public FaultTest, public ::testing::WithParamInterface<Fault> {};

TEST_P(EachFault, FailsItsSnapshotOnlyAndTheNextOneCommits) {
  const Fault& fault = GetParam();
  Model model;
  model.add("w", 3 * kMiB + 5);
  Engine engine = open_faulty(options());
  save_and_commit(engine, 1, model);
  ASSERT_TRUE(engine.wait(Level::kCommitted));

  fs_->fail(fault.call, fault.sys_errno, {.path = fault.path});
  Snapshot failed = save(engine, 2, model);
  static_cast<void>(failed.fence());  // opens either way
  EXPECT_TRUE(failed.released());
  model.update();
  const Status status = failed.wait(Level::kCommitted);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().kind, fault.kind) << status.error().to_string();
  EXPECT_FALSE(status.error().path.empty());

  save_and_commit(engine, 3, model);
  const Status kept = engine.wait(Level::kCommitted);  // said once...
  ASSERT_FALSE(kept);
  EXPECT_EQ(kept.error().kind, fault.kind);
  EXPECT_TRUE(engine.wait(Level::kCommitted));  // ...and not again
  EXPECT_EQ(steps(engine), (std::vector<std::uint64_t>{1, 3}));
  EXPECT_NE(log().find("step 2 was not checkpointed"), std::string::npos) << log();
  for (const auto& entry : std::filesystem::directory_iterator(options().path)) {
    EXPECT_EQ(entry.path().string().find("step-0000000002"), std::string::npos) << "debris: " << entry.path();
  }
  Reader reader;
  EXPECT_EQ(restore(engine, reader), 3u);
  EXPECT_EQ(reader.read, model.copy());
}

TEST_F(FaultTest, MemoryThatRunsOutInTheWriterFailsItsSnapshotOnly) {
  Model model;
  model.add("w", 3 * kMiB + 5);
  Engine engine = open_faulty(options());
  fs_->raise(FsCall::kOpen, {.path = ".safetensors"});
  Snapshot failed = save(engine, 1, model);
  const Status status = failed.wait(Level::kCommitted);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().kind, ErrorKind::kOutOfMemory) << status.error().to_string();
  save_and_commit(engine, 2, model);
  EXPECT_EQ(steps(engine), std::vector<std::uint64_t>{2});
}

INSTANTIATE_TEST_SUITE_P(
    Phases, EachFault,
    ::testing::Values(Fault{"MakeDirectory", FsCall::kMakeDirectory, EIO, ErrorKind::kIo, "step-"},
                      Fault{"CreateDataFile", FsCall::kOpen, EACCES, ErrorKind::kPermission, ".safetensors"},
                      Fault{"DiskFull", FsCall::kAllocate, ENOSPC, ErrorKind::kNoSpace, ".safetensors"},
                      Fault{"Write", FsCall::kQueueWrite, EIO, ErrorKind::kIo, ".safetensors"},
                      Fault{"Truncate", FsCall::kTruncate, EIO, ErrorKind::kIo, ".safetensors"},
                      Fault{"SyncData", FsCall::kSyncData, EIO, ErrorKind::kIo, ".safetensors"},
                      Fault{"CloseData", FsCall::kClose, EIO, ErrorKind::kIo, ".safetensors"},
                      Fault{"WriteRecord", FsCall::kWriteAt, ENOSPC, ErrorKind::kNoSpace, ".record"},
                      Fault{"SyncRecord", FsCall::kSyncAll, EIO, ErrorKind::kIo, ".record"},
                      Fault{"WriteIndex", FsCall::kWriteAt, EIO, ErrorKind::kIo, "/index"},
                      Fault{"SyncVersionDirectory", FsCall::kSyncDirectory, EIO, ErrorKind::kIo, "step-0000000002"},
                      Fault{"SyncManifest", FsCall::kSyncAll, EIO, ErrorKind::kIo, "manifest.json"},
                      Fault{"LinkManifest", FsCall::kLink, EIO, ErrorKind::kIo, "/manifest.json"}),
    [](const auto& fault) { return fault.param.what; });

TEST_F(FaultTest, AFailedClaimIsTriedAgainAtTheNextSave) {
  Model model;
  model.add("w", 1000);
  Engine engine = open_faulty(options());
  fs_->fail(FsCall::kLink, EIO, {.path = "attempt-"});
  EXPECT_FALSE(save(engine, 1, model).wait(Level::kCommitted));
  save_and_commit(engine, 2, model);
}

TEST_F(FaultTest, InDoubtIsNotCommittedAndNothingOlderIsDeleted) {
  Model model;
  model.add("w", 1000);
  Options keep_one = options();
  keep_one.keep = 1;
  Engine engine = open_faulty(keep_one);
  save_and_commit(engine, 1, model);
  ASSERT_TRUE(engine.wait(Level::kCommitted));
  fs_->fail(FsCall::kSyncDirectory, EIO, {.nth = 2, .path = "step-0000000002"});  // the one after the manifest's link
  const Status status = save(engine, 2, model).wait(Level::kCommitted);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().kind, ErrorKind::kInDoubt) << status.error().to_string();
  EXPECT_FALSE(engine.wait(Level::kCommitted));
  EXPECT_TRUE(std::filesystem::exists(keep_one.path + "/step-0000000001.a1/manifest.json"));
  for (const char* file : {"manifest.json", "rank-00000.record", "rank-00000.safetensors"}) {
    EXPECT_TRUE(std::filesystem::exists(keep_one.path + "/step-0000000002.a1/" + file))
        << file << " was cleared away, although the version may be whole and seen by others";
  }
  save_and_commit(engine, 3, model);
  Reader reader;
  EXPECT_EQ(restore(engine, reader), 3u);
}

TEST_F(FaultTest, AWriteBeforeTheFenceIsCaughtAndNeverCommitted) {
  Model model;
  Bytes& w = model.add("layer.w", 6 * kMiB);
  Engine engine = open_faulty(options());
  fs_->hold_writes();
  Snapshot snapshot = save(engine, 1, model);
  fs_->wait_held(2);                      // the pool of two slabs is full: four chunks are still to be copied
  std::ranges::fill(w, std::byte{0x5a});  // misuse: no fence
  fs_->release_writes();
  const Status status = snapshot.wait(Level::kCommitted);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().kind, ErrorKind::kTorn) << status.error().to_string();
  EXPECT_NE(status.error().message.find("'layer.w'"), std::string::npos) << status.error().message;
  EXPECT_FALSE(engine.wait(Level::kCommitted));
  EXPECT_TRUE(list_versions(options().path)->empty());

  // From now on it is captured inside save(), and may change right after it.
  const auto expected = model.copy();
  Snapshot next = save(engine, 2, model);
  model.update();
  ASSERT_TRUE(next.wait(Level::kCommitted));
  Reader reader;
  EXPECT_EQ(restore(engine, reader), 2u);
  EXPECT_EQ(reader.read, expected);
}

TEST_F(FaultTest, AHungDiskOpensTheFenceAfterTheStallTimeoutAndTrainingGoesOn) {
  Model small;  // one slab: it commits, however busy the machine is
  small.add("w", 1000);
  Model model;
  model.add("w", 6 * kMiB);
  Options impatient = options();
  impatient.stall_timeout = std::chrono::milliseconds(50);
  impatient.in_flight = 1;
  Engine engine = open_faulty(impatient);
  std::uint64_t step = commit_first(engine, small);
  ASSERT_TRUE(engine.wait(Level::kCommitted));
  Hung hung = save_hung(engine, ++step, model);
  const Status status = hung.snapshot.fence();
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().kind, ErrorKind::kTimeout) << status.error().to_string();
  expect_opened(hung, impatient.stall_timeout);

  // The slabs under the hung writes are still leased: the next save finds no room, says so, and returns.
  step = hung.step + 1;
  auto next = engine.save(step, model.state());
  ASSERT_TRUE(next && *next);
  ASSERT_TRUE((*next)->error());
  EXPECT_EQ((*next)->error()->kind, ErrorKind::kTimeout);

  fs_->release_writes();
  EXPECT_FALSE(engine.wait(Level::kCommitted));
  save_and_commit(engine, ++step, small);
  Reader reader;
  EXPECT_EQ(restore(engine, reader), step);
}

TEST_F(FaultTest, ASkippingSaveReturnsWhileTheDiskHangs) {
  Model model;
  model.add("w", 6 * kMiB);
  Options skipping = options();
  skipping.on_busy = OnBusy::kSkip;
  skipping.in_flight = 1;
  Engine engine = open_faulty(skipping);
  fs_->hold_writes();
  Snapshot hung = save(engine, 1, model);
  for (std::uint64_t step = 2; step < 10; ++step) {
    auto skipped = engine.save(step, model.state());
    ASSERT_TRUE(skipped);
    EXPECT_FALSE(*skipped);
  }
  const Status waited = engine.wait(Level::kCommitted, std::chrono::milliseconds(10));
  ASSERT_FALSE(waited);
  EXPECT_EQ(waited.error().kind, ErrorKind::kTimeout);
  EXPECT_NE(waited.error().message.find("step 1 is not committed"), std::string::npos) << waited.error().message;
  fs_->release_writes();
  EXPECT_TRUE(hung.wait(Level::kCommitted));
}

TEST_F(FaultTest, CloseWithATimeoutReturnsWhileTheDiskHangs) {
  Model model;
  model.add("w", 6 * kMiB);
  Engine engine = open_faulty(options());
  save_and_commit(engine, 1, model);
  fs_->hold_writes();
  Snapshot hung = save(engine, 2, model);
  const Status closed = engine.close(std::chrono::milliseconds(20));
  ASSERT_FALSE(closed);
  EXPECT_EQ(closed.error().kind, ErrorKind::kTimeout);
  EXPECT_NE(closed.error().message.find("step 2"), std::string::npos) << closed.error().message;
  EXPECT_TRUE(hung.error());
  EXPECT_EQ(list_versions(options().path)->size(), 1u);
}

TEST_F(FaultTest, CloseEndsCleanlyWhenTheWritesCompleteAfterAll) {
  Model model;
  model.add("w", 6 * kMiB);
  Engine engine = open_faulty(options());
  save_and_commit(engine, 1, model);
  fs_->hold_writes();
  Snapshot hung = save(engine, 2, model);
  std::jthread disk([&] {
    static_cast<void>(hung.wait(Level::kCommitted));  // until close() has given it up
    fs_->release_writes();
  });
  const Status closed = engine.close(std::chrono::milliseconds(20));
  ASSERT_FALSE(closed);
  EXPECT_EQ(closed.error().kind, ErrorKind::kTimeout);
  disk.join();
  Engine again = open_when_free(options());  // the lock is free: nothing was left behind
  EXPECT_EQ(steps(again), std::vector<std::uint64_t>{1});
}

TEST_F(FaultTest, CloseReturnsAfterAFenceThatGaveUp) {
  Model small;  // one slab: it commits, however busy the machine is
  small.add("w", 1000);
  Model model;
  model.add("w", 6 * kMiB);
  Options impatient = options();
  impatient.stall_timeout = std::chrono::milliseconds(50);
  Engine engine = open_faulty(impatient);
  const std::uint64_t step = commit_first(engine, small);
  Hung hung = save_hung(engine, step + 1, model);
  EXPECT_FALSE(hung.snapshot.fence());
  EXPECT_FALSE(engine.close(std::chrono::milliseconds(20)));
  EXPECT_EQ(list_versions(options().path)->size(), 1u);
}

TEST_F(FaultTest, CloseInTheMiddleOfTheDecisionNeverLosesTheLastCheckpoint) {
  Model model;
  model.add("w", 1000);
  Options keep_one = options();
  keep_one.keep = 1;
  std::uint64_t step = 1;
  {
    Engine engine = open(keep_one);
    save_and_commit(engine, step, model);
  }
  for (int round = 0; round < 25; ++round) {
    Engine engine = open(keep_one);
    Reader reader;
    ASSERT_GE(restore(engine, reader), 1u);
    step = steps(engine).back() + 1;
    Snapshot snapshot = save(engine, step, model);
    ASSERT_TRUE(snapshot.wait(Level::kDurable));
    static_cast<void>(engine.close(std::chrono::milliseconds(0)));
    {
      const Engine next = open_when_free(keep_one);
    }  // if the decision took longer than close() waits: it has ended now
    const auto left = list_versions(keep_one.path);
    ASSERT_TRUE(left);
    ASSERT_FALSE(left->empty()) << "round " << round;
    const bool committed = snapshot.progress().level == Level::kCommitted;
    EXPECT_EQ(left->back().step == step, committed) << "what is on disk and what was said differ";
  }
}

TEST_F(FaultTest, ParanoidModeCatchesOneChangedByte) {
  Model model;
  Bytes& w = model.add("w", 6 * kMiB);
  Options paranoid = options();
  paranoid.paranoid = true;
  Engine engine = open_faulty(paranoid);
  fs_->hold_writes();
  Snapshot snapshot = save(engine, 1, model);
  fs_->wait_held(2);
  w[5 * kMiB] ^= std::byte{1};
  fs_->release_writes();
  const Status status = snapshot.wait(Level::kCommitted);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().kind, ErrorKind::kTorn);
  EXPECT_EQ(snapshot.torn_tensors(), std::vector<std::string>{"w"});
}

TEST_F(FaultTest, AnUnlinkThatFailsIsReportedAndTheCheckpointStands) {
  Model model;
  model.add("w", 1000);
  Options keep_one = options();
  keep_one.keep = 1;
  Engine engine = open_faulty(keep_one);
  save_and_commit(engine, 1, model);
  ASSERT_TRUE(engine.wait(Level::kCommitted));
  fs_->fail(FsCall::kUnlink, EIO, {.times = kAlways, .path = "step-0000000001"});
  save_and_commit(engine, 2, model);
  Reader reader;
  EXPECT_EQ(restore(engine, reader), 2u);  // waits until the deletion in the background has failed
  const Status told = engine.wait(Level::kCommitted);
  ASSERT_FALSE(told);
  EXPECT_NE(log().find("could not be removed"), std::string::npos) << log();
  fs_->clear_faults();
}

TEST_F(FaultTest, AForkedChildDisownsTheEngine) {
  Model model;
  model.add("w", 6 * kMiB);
  Engine engine = open_faulty(options());
  fs_->hold_writes();
  Snapshot snapshot = save(engine, 1, model);
  fs_->wait_held(2);
  const int code = run_in_child([&] {
    if (snapshot.fence()) return 1;
    if (snapshot.wait(Level::kCommitted)) return 2;
    auto saved = engine.save(2, model.state());
    if (saved || saved.error().kind != ErrorKind::kClosed) return 3;
    if (!engine.close()) return 4;
    Engine gone = std::move(engine);  // destroyed here: nothing may hang
    return 0;
  });
  EXPECT_EQ(code, 0);
  fs_->release_writes();
  EXPECT_TRUE(snapshot.wait(Level::kCommitted));
}

}  // namespace
}  // namespace slackwater::test
