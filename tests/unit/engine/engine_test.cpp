#include <fstream>
#include <thread>

#include "unit/engine/engine_fixture.hpp"

namespace slackwater::test {
namespace {

TEST_F(EngineTest, RestoresTheBytesThatWereSaved) {
  Model model;
  model.add("w", 3 * kMiB + 17);
  model.add("small", 5);
  model.add("empty", 0);
  {
    Engine engine = open(options());
    save_and_commit(engine, 1, model);
    ASSERT_TRUE(engine.close());
  }
  Engine engine = open(options());
  Reader reader;
  EXPECT_EQ(restore(engine, reader), 1u);
  EXPECT_EQ(reader.read, model.copy());
  EXPECT_EQ(reader.tree, R"({"kind":"test"})");
}

TEST_F(EngineTest, UpdateAfterTheFenceDoesNotReachTheSnapshot) {
  Model model;
  model.add("w", 9 * kMiB);  // far more than the pool of two slabs
  Engine engine = open(options());
  for (std::uint64_t step = 1; step <= 5; ++step) {
    const auto expected = model.copy();
    Snapshot snapshot = save(engine, step, model);
    ASSERT_TRUE(snapshot.fence());
    model.update();
    ASSERT_TRUE(snapshot.wait(Level::kCommitted));
    Reader reader;
    auto checkpoint = Checkpoint::open(options().path, step);
    ASSERT_TRUE(checkpoint) << checkpoint.error().to_string();
    auto targets = reader.plan()(*checkpoint);
    ASSERT_TRUE(checkpoint->read(*targets));
    EXPECT_EQ(reader.read, expected);
  }
}

TEST_F(EngineTest, GivesTheTensorsBackAsTheyWereOnceItHasDoneWithThem) {
  Model model;
  model.add("w", kMiB);
  model.add("small", 5);
  std::vector<Tensor> back;
  {
    Engine engine = open(options());
    State state = model.state();
    state.take_back = [&](std::vector<Tensor> tensors) { back = std::move(tensors); };
    ASSERT_TRUE(engine.save(1, std::move(state)));
    ASSERT_TRUE(engine.close());
  }
  const State given = model.state();
  ASSERT_EQ(back.size(), given.tensors.size());
  for (std::size_t i = 0; i < back.size(); ++i) {
    EXPECT_EQ(back[i].name, given.tensors[i].name);
    EXPECT_EQ(back[i].shape, given.tensors[i].shape);
    EXPECT_EQ(back[i].data, given.tensors[i].data);
  }
}

TEST_F(EngineTest, SeveralSnapshotsInFlightShareThePoolInOrder) {
  Model model;
  model.add("a", 4 * kMiB);
  model.add("b", 3 * kMiB + 1);
  Options many = options();
  many.in_flight = 4;
  many.keep = 0;
  Engine engine = open(many);
  std::map<std::uint64_t, std::map<std::string, Bytes>> expected;
  for (std::uint64_t step = 1; step <= 12; ++step) {
    expected[step] = model.copy();
    ASSERT_TRUE(save(engine, step, model).fence());
    model.update();
  }
  ASSERT_TRUE(engine.wait(Level::kCommitted));
  EXPECT_EQ(steps(engine).size(), 12u);
  for (const auto& [step, bytes] : expected) {
    Reader reader;
    auto checkpoint = Checkpoint::open(options().path, step);
    ASSERT_TRUE(checkpoint);
    ASSERT_TRUE(checkpoint->read(*reader.plan()(*checkpoint)));
    EXPECT_EQ(reader.read, bytes) << "step " << step;
  }
}

TEST_F(EngineTest, TheHandleTellsHowFarTheSnapshotIs) {
  Model model;
  model.add("w", 2 * kMiB);
  Engine engine = open(options());
  Snapshot snapshot = save(engine, 7, model);
  ASSERT_TRUE(snapshot.wait(Level::kCommitted));
  ASSERT_TRUE(engine.close());
  EXPECT_EQ(snapshot.step(), 7u);
  const Progress progress = snapshot.progress();
  EXPECT_EQ(progress.level, Level::kCommitted);
  EXPECT_GT(progress.total_bytes, 2 * kMiB);
  EXPECT_EQ(progress.staged_bytes, progress.total_bytes);
  EXPECT_EQ(progress.written_bytes, progress.total_bytes);
  const SnapshotStats stats = snapshot.stats();
  EXPECT_EQ(stats.tensor_count, 1u);
  EXPECT_GT(stats.save_seconds, 0);
  EXPECT_LE(stats.staged_seconds, stats.durable_seconds);
  EXPECT_LE(stats.durable_seconds, stats.committed_seconds);
  EXPECT_TRUE(snapshot.released());
}

TEST_F(EngineTest, KeepsTheNewestAndThoseOfKeepEveryAndPinned) {
  Model model;
  model.add("w", 100);
  Options keep = options();
  keep.keep = 2;
  keep.keep_every = 4;
  Engine engine = open(keep);
  save_and_commit(engine, 1, model);
  ASSERT_TRUE(engine.wait(Level::kCommitted));
  ASSERT_TRUE(engine.pin(1));
  for (std::uint64_t step = 2; step <= 10; ++step) save_and_commit(engine, step, model);
  ASSERT_TRUE(engine.wait(Level::kCommitted));
  EXPECT_EQ(steps(engine), (std::vector<std::uint64_t>{1, 4, 8, 9, 10}));
}

TEST_F(EngineTest, RemovesAStepWhenAsked) {
  Model model;
  model.add("w", 100);
  Engine engine = open(options());
  save_and_commit(engine, 1, model);
  save_and_commit(engine, 2, model);
  ASSERT_TRUE(engine.wait(Level::kCommitted));
  ASSERT_TRUE(engine.remove(1));
  EXPECT_EQ(steps(engine), std::vector<std::uint64_t>{2});
  const Status again = engine.remove(1);
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().kind, ErrorKind::kNotFound);
  EXPECT_NE(again.error().message.find("there are: 2"), std::string::npos) << again.error().message;
}

TEST_F(EngineTest, RestoreFromAnEmptyDirectoryIsNothing) {
  Engine engine = open(options());
  Reader reader;
  EXPECT_EQ(restore(engine, reader), 0u);
}

TEST_F(EngineTest, RollbackSupersedesWhatCameAfterAtTheFirstNewCommit) {
  Model model;
  model.add("w", 1000);
  Options all = options();
  all.keep = 0;
  std::map<std::string, Bytes> at_two;
  {
    Engine engine = open(all);
    for (std::uint64_t step = 1; step <= 5; ++step) {
      save_and_commit(engine, step, model);
      if (step == 2) at_two = model.copy();
      model.update();
    }
    ASSERT_TRUE(engine.close());
  }
  Engine engine = open(all);
  Reader reader;
  ASSERT_EQ(restore(engine, reader, 2), 2u);
  EXPECT_EQ(reader.read, at_two);
  EXPECT_EQ(steps(engine).back(), 5u);  // still there: nothing new was committed
  save_and_commit(engine, 3, model);
  ASSERT_TRUE(engine.wait(Level::kCommitted));
  EXPECT_EQ(steps(engine), (std::vector<std::uint64_t>{1, 2, 3}));
  ASSERT_EQ(restore(engine, reader), 3u);
  EXPECT_EQ(reader.read, model.copy());
}

TEST_F(EngineTest, RollbackInTheSameProcessWorks) {
  Model model;
  model.add("w", 1000);
  Options all = options();
  all.keep = 0;
  Engine engine = open(all);
  for (std::uint64_t step = 1; step <= 4; ++step) save_and_commit(engine, step, model);
  Reader reader;
  ASSERT_EQ(restore(engine, reader, 2), 2u);
  save_and_commit(engine, 3, model);
  ASSERT_TRUE(engine.wait(Level::kCommitted));
  EXPECT_EQ(steps(engine), (std::vector<std::uint64_t>{1, 2, 3}));
}

TEST_F(EngineTest, SkipsWhenBusyIfToldTo) {
  Model model;
  model.add("w", 6 * kMiB);
  Options skip = options();
  skip.on_busy = OnBusy::kSkip;
  skip.in_flight = 1;
  Engine engine = open(skip);
  State unsealed = model.state();
  unsealed.sealed_by_caller = true;  // holds the first one up, whatever the disk does
  auto first = engine.save(1, std::move(unsealed));
  ASSERT_TRUE(first && *first);
  auto second = engine.save(2, model.state());
  ASSERT_TRUE(second);
  EXPECT_FALSE(*second);
  EXPECT_EQ(engine.stats().snapshots_skipped, 1u);
  (*first)->seal();
  ASSERT_TRUE((*first)->wait(Level::kCommitted));
}

TEST_F(EngineTest, IsNotCommittedBeforeTheCallerSealedIt) {
  Model model;
  model.add("w", 1000);
  Engine engine = open(options());
  State state = model.state();
  state.sealed_by_caller = true;
  auto snapshot = engine.save(1, std::move(state));
  ASSERT_TRUE(snapshot && *snapshot);
  ASSERT_TRUE((*snapshot)->wait(Level::kDurable));
  const Status early = (*snapshot)->wait(Level::kCommitted, std::chrono::milliseconds(20));
  ASSERT_FALSE(early);
  EXPECT_EQ(early.error().kind, ErrorKind::kTimeout);
  EXPECT_TRUE(list_versions(options().path)->empty());
  (*snapshot)->seal();
  ASSERT_TRUE((*snapshot)->wait(Level::kCommitted));
  EXPECT_EQ(list_versions(options().path)->size(), 1u);
}

TEST_F(EngineTest, ATensorTheCallerFoundTornIsNeverCommittedAndIsCapturedAtOnceAfterwards) {
  Model model;
  model.add("w", 1000);
  Engine engine = open(options());
  State state = model.state();
  state.sealed_by_caller = true;
  auto torn = engine.save(1, std::move(state));
  ASSERT_TRUE(torn && *torn);
  (*torn)->seal({"w"});
  const Status status = (*torn)->wait(Level::kCommitted);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().kind, ErrorKind::kTorn);
  EXPECT_NE(status.error().message.find("'w'"), std::string::npos);
  EXPECT_EQ(status.error().tensor, "w");
  const Status kept = engine.wait(Level::kCommitted);
  ASSERT_FALSE(kept);
  EXPECT_EQ(kept.error().kind, ErrorKind::kTorn);
  EXPECT_TRUE(steps(engine).empty());

  Snapshot next = save(engine, 2, model);
  EXPECT_EQ(next.stats().at_once_bytes, 1000u);
  ASSERT_TRUE(next.wait(Level::kCommitted));
  ASSERT_TRUE(engine.close());
}

TEST_F(EngineTest, VolatileTensorsMayChangeRightAfterSave) {
  Model model;
  Bytes& running = model.add("bn.running_mean", 4096);
  Bytes& count = model.add("bn.batches", 100);
  Bytes& variance = model.add("bn.running_var", 5000);
  model.add("w", 3 * kMiB);
  Engine engine = open(options());
  const auto expected = model.copy();
  State state = model.state();
  for (std::size_t i = 0; i < 3; ++i) state.tensors[i].at_once = true;
  auto snapshot = engine.save(1, std::move(state));
  ASSERT_TRUE(snapshot && *snapshot);
  for (Bytes* changed : {&running, &count, &variance}) changed->assign(changed->size(), std::byte{1});
  ASSERT_TRUE((*snapshot)->wait(Level::kCommitted));
  Reader reader;
  ASSERT_EQ(restore(engine, reader), 1u);
  EXPECT_EQ(reader.read, expected);
}

TEST_F(EngineTest, VolatileTensorsBeyondTheLimitMakeSaveWaitForTheCopies) {
  Model model;
  Bytes& large = model.add("cache", 65 * kMiB);
  Engine engine = open(options());
  const auto expected = model.copy();
  State state = model.state();
  state.tensors[0].at_once = true;
  auto snapshot = engine.save(1, std::move(state));
  ASSERT_TRUE(snapshot && *snapshot);
  EXPECT_TRUE((*snapshot)->released());
  EXPECT_EQ((*snapshot)->stats().at_once_bytes, 0u);
  large.assign(large.size(), std::byte{1});
  ASSERT_TRUE((*snapshot)->wait(Level::kCommitted));
  Reader reader;
  ASSERT_EQ(restore(engine, reader), 1u);
  EXPECT_TRUE(reader.read == expected);
}

TEST_F(EngineTest, RestoreDoesNotSwallowABackgroundError) {
  Model model;
  model.add("w", 1000);
  Engine engine = open(options());
  save_and_commit(engine, 1, model);
  State state = model.state();
  state.sealed_by_caller = true;
  auto torn = engine.save(2, std::move(state));
  ASSERT_TRUE(torn && *torn);
  (*torn)->seal({"w"});
  Reader reader;
  ASSERT_EQ(restore(engine, reader), 1u);
  const Status closed = engine.close();
  ASSERT_FALSE(closed);
  EXPECT_EQ(closed.error().kind, ErrorKind::kTorn);
}

TEST_F(EngineTest, TiedTensorsAreStoredOnceAndBothComeBack) {
  Model model;
  model.add("embed", 2 * kMiB);
  State state = model.state();
  state.tensors.push_back(state.tensors[0]);
  state.tensors[1].name = "head";
  Engine engine = open(options());
  auto snapshot = engine.save(1, std::move(state));
  ASSERT_TRUE(snapshot && *snapshot);
  ASSERT_TRUE((*snapshot)->wait(Level::kCommitted));
  EXPECT_LT((*snapshot)->stats().total_bytes, 3 * kMiB);
  Reader reader;
  ASSERT_EQ(restore(engine, reader), 1u);
  EXPECT_EQ(reader.read.at("head"), model["embed"]);
  EXPECT_EQ(reader.read.at("embed"), model["embed"]);
}

TEST_F(EngineTest, ManySmallTensorsShareSlabs) {
  Model model;
  for (int i = 0; i < 5000; ++i) model.add("t" + std::to_string(i), 100 + i % 7);
  Engine engine = open(options());
  save_and_commit(engine, 1, model);
  Reader reader;
  ASSERT_EQ(restore(engine, reader), 1u);
  EXPECT_EQ(reader.read, model.copy());
}

TEST_F(EngineTest, ParanoidModeSavesAndRestores) {
  Model model;
  model.add("w", 3 * kMiB);
  Options paranoid = options();
  paranoid.paranoid = true;
  Engine engine = open(paranoid);
  save_and_commit(engine, 1, model);
  Reader reader;
  ASSERT_EQ(restore(engine, reader), 1u);
  EXPECT_EQ(reader.read, model.copy());
}

TEST_F(EngineTest, WorksWithThreadsAndBufferedFilesToo) {
  Model model;
  model.add("w", 5 * kMiB + 3);
  Options plain = options();
  plain.io_backend = IoBackend::kThreads;
  plain.direct_io = false;
  Engine engine = open(plain);
  save_and_commit(engine, 1, model);
  EXPECT_EQ(engine.stats().io_backend, "threads");
  EXPECT_FALSE(engine.stats().direct_io);
  Reader reader;
  ASSERT_EQ(restore(engine, reader), 1u);
  EXPECT_EQ(reader.read, model.copy());
}

TEST_F(EngineTest, OwnerIsReleasedWhenTheCopiesAreDone) {
  Model model;
  model.add("w", 2 * kMiB);
  Engine engine = open(options());
  auto owner = std::make_shared<int>(1);
  State state = model.state();
  state.owner = owner;
  auto snapshot = engine.save(1, std::move(state));
  ASSERT_TRUE(snapshot && *snapshot);
  ASSERT_TRUE((*snapshot)->wait_released());
  ASSERT_TRUE((*snapshot)->wait(Level::kCommitted));
  EXPECT_EQ(owner.use_count(), 1);
}

}  // namespace
}  // namespace slackwater::test
