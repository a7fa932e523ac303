// close() beside every other call. The rule (docs/threading.md): what save() accepted before is committed or named by
// close(). A save() that comes too late returns kClosed. A call that is still inside loses nothing that it uses.
//
// The tests force schedules with a tensor that stops its reader (gated_tensor.hpp), with a disk that holds writes back
// or hangs, and with plans of restore() that call close(). The stress test at the end adds random ones.
#include <atomic>
#include <latch>
#include <set>
#include <thread>

#include "support/leaves_threads.hpp"
#include "unit/engine/faulty_engine_fixture.hpp"
#include "unit/engine/gated_tensor.hpp"

namespace slackwater::test {
namespace {

using std::chrono::milliseconds;
using Saved = Result<std::optional<Snapshot>>;

class CloseTest : public FaultyEngineTest {
 protected:
  // Spins until close() has shut the door: then every other call answers kClosed, whatever it asks for.
  static void wait_closing(Engine& engine) {
    for (;;) {
      const Status pinned = engine.pin(999'999);
      if (!pinned && pinned.error().kind == ErrorKind::kClosed) return;
      std::this_thread::yield();
    }
  }
  static bool says(const Status& status, const std::string& words) {
    return !status && status.error().message.find(words) != std::string::npos;
  }
  static testing::AssertionResult is_closed(const Saved& saved) {
    if (saved) return testing::AssertionFailure() << "it was accepted";
    if (saved.error().kind != ErrorKind::kClosed) return testing::AssertionFailure() << saved.error().to_string();
    return testing::AssertionSuccess();
  }
  // The steps on disk, and that the lock is free: nothing of the engine is left.
  std::vector<std::uint64_t> steps_on_disk() { return steps(open(options())); }
  // The same, when what a close() that ran out of time left behind has ended.
  std::vector<std::uint64_t> steps_in_the_end() { return steps(open_when_free(options())); }
};

// save() is held in the midst of its capture while all of close() runs.
class CloseInACapture : public CloseTest, public ::testing::WithParamInterface<std::optional<int>> {
 protected:
  [[nodiscard]] static std::optional<milliseconds> timeout() {
    if (!GetParam()) return std::nullopt;
    return milliseconds(*GetParam());
  }
  // `before`: steps that are saved first.
  void run(Options chosen, std::uint64_t before) {
    Model model;
    model.add("w", 3 * kMiB);
    GatedTensor gate;
    Engine engine = open(std::move(chosen));
    for (std::uint64_t step = 1; step <= before; ++step) save_and_commit(engine, step, model);
    State state = model.state();
    state.tensors.push_back(gate.tensor("gated"));
    Saved late;
    std::jthread trainer([&] { late = engine.save(before + 1, std::move(state)); });
    gate.wait_reached();
    const Status closed = engine.close(timeout());
    EXPECT_TRUE(closed) << closed.error().to_string();
    gate.open();
    trainer.join();
    EXPECT_TRUE(is_closed(late));
    EXPECT_EQ(engine.stats().snapshots_failed, 0u) << "it was never accepted";
    EXPECT_TRUE(is_closed(engine.save(before + 2, model.state())));
  }
};

TEST_P(CloseInACapture, TheSaveAnswersClosedAndNothingIsStartedAgain) {
  run(options(), 1);
  EXPECT_EQ(steps_on_disk(), std::vector<std::uint64_t>{1});
}

TEST_P(CloseInACapture, AlsoAtTheFirstSave) {
  run(options(), 0);
  EXPECT_TRUE(steps_on_disk().empty());
}

TEST_P(CloseInACapture, AlsoOfSeveralRanks) {
  Options leader = options();
  leader.world = 2;
  leader.commit_timeout = milliseconds(50);
  run(leader, 0);
}

INSTANTIATE_TEST_SUITE_P(Timeouts, CloseInACapture, ::testing::Values(std::nullopt, 0, 10'000),
                         [](const auto& timeout) {
                           return timeout.param ? fmt::format("{}ms", *timeout.param) : std::string("None");
                         });

TEST_F(CloseTest, ASaveThatWaitsForRoomAnswersClosedAtOnce) {
  Model model;
  model.add("w", 6 * kMiB);
  Options narrow = options();
  narrow.in_flight = 1;
  Engine engine = open_faulty(narrow);
  fs_->hold_writes();
  Snapshot first = save(engine, 1, model);
  Saved second;
  std::jthread trainer([&] { second = engine.save(2, model.state()); });
  Status closed;
  std::jthread closer([&] { closed = engine.close(); });
  trainer.join();  // while the disk still hangs
  EXPECT_TRUE(is_closed(second));
  fs_->release_writes();
  closer.join();
  EXPECT_TRUE(closed) << closed.error().to_string();
  EXPECT_TRUE(first.wait(Level::kCommitted));
  EXPECT_EQ(steps_on_disk(), std::vector<std::uint64_t>{1});
}

TEST_F(CloseTest, ASaveThatStallsIsNamedOrNotAccepted) {
  Model model;
  model.add("w", 6 * kMiB);
  Options narrow = options();
  narrow.in_flight = 1;
  narrow.stall_timeout = milliseconds(50);
  for (int round = 0; round < 5; ++round) {
    Engine engine = open_faulty(narrow);
    Reader reader;
    restore(engine, reader);
    const std::uint64_t step = save_hung(engine, (kTries + 10) * round + 1, model).step;
    Saved second;
    std::latch returned(1);
    std::jthread trainer([&] {
      second = engine.save(step + 1, model.state());
      returned.count_down();
    });
    std::jthread disk([&] {
      wait_closing(engine);
      returned.wait();
      fs_->release_writes();
    });
    if (round % 2 == 1) returned.wait();  // it has stalled before close() comes
    const Status closed = engine.close();
    disk.join();
    trainer.join();
    EXPECT_TRUE(second || round % 2 == 0);
    if (second) {
      ASSERT_TRUE(*second && (*second)->error());
      EXPECT_TRUE(says(closed, fmt::format("step {}", step + 1))) << (closed ? "" : closed.error().message);
    } else {
      EXPECT_TRUE(is_closed(second));
    }
  }
}

// More than save() may copy early: it waits in a fence of its own, on a disk that does not answer.
class CloseInTheFenceOfASave : public CloseTest {
 protected:
  State state() {
    State state = model_.state();
    for (Tensor& tensor : state.tensors) tensor.at_once = true;
    return state;
  }
  void SetUp() override { model_.add("w", 65 * kMiB); }
  Model model_;
};

TEST_F(CloseInTheFenceOfASave, WhatWasAcceptedIsCommitted) {
  Engine engine = open_faulty(options());
  fs_->hold_writes();
  Saved saved;
  std::jthread trainer([&] { saved = engine.save(1, state()); });
  fs_->wait_held(2);  // the pool is full: save() waits in its fence
  Status closed;
  std::jthread closer([&] { closed = engine.close(); });
  wait_closing(engine);
  fs_->release_writes();
  trainer.join();
  closer.join();
  ASSERT_TRUE(saved && *saved);
  EXPECT_FALSE((*saved)->error());
  EXPECT_TRUE(closed) << closed.error().to_string();
  EXPECT_EQ(steps_on_disk(), std::vector<std::uint64_t>{1});
}

TEST_F(CloseInTheFenceOfASave, OrNamedWhenTimeIsOver) {
  Engine engine = open_faulty(options());
  fs_->hold_writes();
  Saved saved;
  std::jthread trainer([&] { saved = engine.save(1, state()); });
  fs_->wait_held(2);
  std::jthread disk([&] {
    trainer.join();  // its fence opens when close() gives it up
    fs_->release_writes();
  });
  const Status closed = engine.close(milliseconds(20));
  disk.join();
  ASSERT_TRUE(saved && *saved);
  EXPECT_TRUE((*saved)->error());
  EXPECT_TRUE(says(closed, "given up: step 1")) << (closed ? "" : closed.error().message);
}

TEST_F(CloseTest, ASecondCloseEndsWithTheFirst) {
  Model model;
  model.add("w", 6 * kMiB);
  Engine engine = open_faulty(options());
  fs_->hold_writes();
  Snapshot snapshot = save(engine, 1, model);
  Status first;
  std::jthread closer([&] { first = engine.close(); });
  wait_closing(engine);
  const Status impatient = engine.close(milliseconds(5));
  ASSERT_FALSE(impatient) << "the first is not over";
  EXPECT_EQ(impatient.error().kind, ErrorKind::kTimeout) << impatient.error().to_string();
  std::jthread disk([&] { fs_->release_writes(); });
  EXPECT_TRUE(engine.close());
  EXPECT_EQ(steps_on_disk(), std::vector<std::uint64_t>{1}) << "the lock is free, whichever of the two returns first";
  closer.join();
  EXPECT_TRUE(first) << first.error().to_string();
  EXPECT_TRUE(engine.close());
}

TEST_F(CloseTest, TheDestructorWaitsForACloseThatIsUnderWay) {
  Model model;
  model.add("w", 6 * kMiB);
  auto engine = std::make_unique<Engine>(open_faulty(options()));
  fs_->hold_writes();
  Snapshot snapshot = save(*engine, 1, model);
  Status closed;
  std::jthread closer([&, inside = engine.get()] { closed = inside->close(); });
  wait_closing(*engine);
  std::jthread disk([&] { fs_->release_writes(); });
  engine.reset();
  closer.join();
  EXPECT_TRUE(closed);
  EXPECT_EQ(steps_on_disk(), std::vector<std::uint64_t>{1});
}

TEST_F(CloseTest, APlanOfRestoreMayClose) {  // as a signal handler in Python does
  Model model;
  model.add("w", 3 * kMiB);
  Engine engine = open(options());
  save_and_commit(engine, 1, model);
  Reader reader;
  const auto restored = engine.restore({}, [&](const Checkpoint& checkpoint) {
    EXPECT_TRUE(engine.close());
    return reader.plan()(checkpoint);
  });
  if (restored) {
    EXPECT_EQ(reader.read, model.copy());
  } else {
    EXPECT_EQ(restored.error().kind, ErrorKind::kClosed) << restored.error().to_string();
  }
  EXPECT_TRUE(is_closed(engine.save(2, model.state())));
  EXPECT_EQ(steps_on_disk(), std::vector<std::uint64_t>{1});
}

TEST_F(CloseTest, ARestoreOnAnotherThreadKeepsWhatItReadsInto) {
  Model model;
  model.add("w", 5 * kMiB);
  Engine engine = open_faulty(options());
  save_and_commit(engine, 1, model);
  fs_->hang(FsCall::kQueueRead, {.path = ".safetensors"});
  Reader reader;
  std::uint64_t restored = 0;
  std::jthread trainer([&] { restored = restore(engine, reader); });
  fs_->wait_hung(1);  // it reads into slabs of the engine's pool
  EXPECT_TRUE(engine.close());
  fs_->release_hung();
  trainer.join();
  EXPECT_EQ(restored, 1u);
  EXPECT_EQ(reader.read, model.copy());
}

TEST_F(CloseTest, ARestoreOfSeveralRanksThatWaitsForOthers) {
  Options leader = options();
  leader.world = 2;
  leader.commit_timeout = milliseconds(100);
  Engine engine = open_faulty(leader);
  fs_->hang(FsCall::kList);
  Reader reader;
  Result<std::optional<Restored>> restored;
  std::jthread trainer([&] { restored = engine.restore({}, reader.plan()); });
  fs_->wait_hung(1);
  std::jthread closer([&] { static_cast<void>(engine.close()); });
  wait_closing(engine);
  fs_->release_hung();
  trainer.join();
  EXPECT_FALSE(restored);
}

TEST_F(CloseTest, APinOnADiskThatHangsHoldsUpNoCloseWithATimeout) {
  Model model;
  model.add("w", 1000);
  Engine engine = open_faulty(options());
  save_and_commit(engine, 1, model);
  ASSERT_TRUE(engine.wait(Level::kCommitted));
  fs_->hang(FsCall::kOpen);
  fs_->hang(FsCall::kList);
  fs_->hang(FsCall::kStatus);
  fs_->hang(FsCall::kLink);
  Status pinned;
  std::jthread user([&] { pinned = engine.pin(1); });
  fs_->wait_hung(1);
  static_cast<void>(engine.close(milliseconds(10)));
  fs_->release_hung();
  user.join();
  EXPECT_TRUE(pinned || pinned.error().kind == ErrorKind::kClosed) << pinned.error().to_string();
  static_cast<void>(open_when_free(options()));  // what close() left behind has let go of the lock
}

TEST_F(CloseTest, ADeleteOfAnOldStepThatHangsHoldsUpNoCloseWithATimeout) {
  Model model;
  model.add("w", 1000);
  Options chosen = options();
  chosen.keep = 1;
  Engine engine = open_faulty(chosen);
  save_and_commit(engine, 1, model);
  fs_->hang(FsCall::kUnlink, {.path = "step-0000000001"});
  save_and_commit(engine, 2, model);
  fs_->wait_hung(1);
  static_cast<void>(engine.close(milliseconds(10)));
  fs_->release_hung();
  EXPECT_EQ(steps_in_the_end(), std::vector<std::uint64_t>{2});
}

TEST_F(CloseTest, ARemoveOnASlowDiskIsWaitedFor) {
  Model model;
  model.add("w", 1000);
  Engine engine = open_faulty(options());
  save_and_commit(engine, 1, model);
  save_and_commit(engine, 2, model);
  ASSERT_TRUE(engine.wait(Level::kCommitted));
  fs_->hang(FsCall::kUnlink);
  Status removed;
  std::jthread user([&] { removed = engine.remove(1); });
  fs_->wait_hung(1);
  std::jthread closer([&] { EXPECT_TRUE(engine.close()); });
  wait_closing(engine);
  fs_->release_hung();
  user.join();
  closer.join();
  EXPECT_TRUE(removed) << removed.error().to_string();
  EXPECT_EQ(steps_on_disk(), std::vector<std::uint64_t>{2});
}

// close() is the last to speak: every step that failed since wait() last told is in its words.
TEST_F(CloseTest, NamesEveryStepThatFailed) {
  Model model;
  model.add("w", 1000);
  Options all = options();
  all.keep = 0;
  Engine engine = open_faulty(all);
  save_and_commit(engine, 1, model);
  for (const std::uint64_t step : {2, 3, 5}) {
    fs_->fail(FsCall::kSyncData, EIO, {.path = fmt::format("step-{:010}", step)});
  }
  for (std::uint64_t step = 2; step <= 6; ++step) save(engine, step, model);
  const Status closed = engine.close();
  ASSERT_FALSE(closed);
  EXPECT_EQ(closed.error().kind, ErrorKind::kIo) << closed.error().to_string();
  EXPECT_TRUE(says(closed, "step 2 was not checkpointed")) << closed.error().message;
  EXPECT_TRUE(says(closed, "steps 3, 5")) << closed.error().message;
  EXPECT_EQ(steps_on_disk(), (std::vector<std::uint64_t>{1, 4, 6}));
}

TEST_F(CloseTest, NamesWhatFailedBesideWhatItGivesUp) {
  Model model;
  model.add("w", 6 * kMiB);
  Engine engine = open_faulty(options());
  save_and_commit(engine, 1, model);
  fs_->fail(FsCall::kSyncData, EIO, {.path = "step-0000000002"});
  Snapshot failed = save(engine, 2, model);
  EXPECT_FALSE(failed.wait(Level::kCommitted));
  while (!engine.background_error()) std::this_thread::yield();
  fs_->hold_writes();
  Snapshot hung = save(engine, 3, model);
  std::jthread disk([&] {
    static_cast<void>(hung.wait(Level::kCommitted));  // until close() has given it up
    fs_->release_writes();
  });
  const Status closed = engine.close(milliseconds(20));
  EXPECT_TRUE(says(closed, "given up: step 3")) << (closed ? "" : closed.error().message);
  EXPECT_TRUE(says(closed, "step 2 was not checkpointed")) << (closed ? "" : closed.error().message);
}

TEST_F(CloseTest, DoesNotNameWhatWasCommittedAfterAll) {
  Model model;
  model.add("w", 1000);
  Engine engine = open_faulty(options());
  save_and_commit(engine, 1, model);
  fs_->hang(FsCall::kLink, {.path = "/manifest.json"});
  Snapshot deciding = save(engine, 2, model);
  fs_->wait_hung(1);  // past the point of no return
  std::jthread disk([&] {
    wait_closing(engine);
    fs_->release_hung();
  });
  const Status closed = engine.close(milliseconds(0));
  disk.join();
  // Unless the decision took longer than close() waits for it: then it says so in the log, and cannot know.
  if (log().find("does not respond") == std::string::npos) {
    EXPECT_EQ(says(closed, "given up: step 2"), deciding.progress().level != Level::kCommitted);
  }
  EXPECT_TRUE(deciding.wait(Level::kCommitted, std::chrono::minutes(1)));
}

// Everything at once: a trainer saves without end, others look, wait and fence, one closes.
class CloseAmongEverything : public CloseTest, public ::testing::WithParamInterface<int> {};

TEST_P(CloseAmongEverything, EachStepThatWasAcceptedIsCommittedOrNamed) {
  Model model;
  model.add("w", 40'000);
  Options all = options();
  all.keep = 0;
  std::atomic<std::uint64_t> step{0};
  for (int round = 0; round < 12; ++round) {
    Engine engine = open(all);
    Reader reader;
    restore(engine, reader);
    std::map<std::uint64_t, Snapshot> accepted;
    std::atomic<std::uint64_t> saved{0};
    std::atomic<bool> over{false};
    std::mutex mutex;
    std::string told;
    const auto listen = [&](const Status& status) {
      const std::lock_guard lock(mutex);
      if (!status) told += status.error().message + "\n";
    };
    const auto until_over = [&](const auto& work) {
      return [&over, work] {
        while (!over) work();
      };
    };
    std::jthread trainer([&] {
      for (;;) {
        const std::uint64_t number = ++step;
        auto snapshot = engine.save(number, model.state());
        if (!snapshot) {
          EXPECT_TRUE(is_closed(snapshot));
          return;
        }
        ASSERT_TRUE(*snapshot);
        accepted.emplace(number, **snapshot);
        static_cast<void>((*snapshot)->fence());
        ++saved;
      }
    });
    std::vector<std::jthread> others;
    others.emplace_back(until_over([&] { static_cast<void>(engine.stats()); }));
    others.emplace_back(until_over([&] { static_cast<void>(engine.fence()); }));
    others.emplace_back(until_over([&] { listen(engine.wait(Level::kCommitted, milliseconds(1))); }));
    others.emplace_back(until_over([&] { static_cast<void>(engine.pin(step - 1)); }));
    while (saved < static_cast<std::uint64_t>(round % 4)) std::this_thread::yield();
    std::optional<milliseconds> timeout;
    if (GetParam() >= 0) timeout = milliseconds(GetParam());
    std::jthread second([&] { listen(engine.close(timeout)); });
    listen(engine.close(timeout));
    second.join();
    trainer.join();
    over = true;
    others.clear();

    std::set<std::uint64_t> on_disk;
    for (const std::uint64_t found : timeout ? steps_in_the_end() : steps_on_disk()) on_disk.insert(found);
    for (auto& [number, snapshot] : accepted) {
      const bool committed = snapshot.progress().level == Level::kCommitted;
      EXPECT_EQ(on_disk.contains(number), committed) << "step " << number;
      if (committed) continue;
      EXPECT_TRUE(timeout) << "step " << number << " was given up though there was time";
      EXPECT_TRUE(snapshot.error()) << "step " << number;
      EXPECT_NE(told.find(std::to_string(number)), std::string::npos) << "step " << number << " was dropped: " << told;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Timeouts, CloseAmongEverything, ::testing::Values(-1, 0, 3), [](const auto& timeout) {
  return timeout.param < 0 ? std::string("None") : fmt::format("{}ms", timeout.param);
});

}  // namespace
}  // namespace slackwater::test
