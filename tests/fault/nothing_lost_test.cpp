// Ways to lose an acknowledged checkpoint, or to stop making new ones, without a crash: debris on a full disk, storage
// that cannot be read for a while, slow deletes.
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "engine/engine_impl.hpp"
#include "support/ballast.hpp"
#include "support/fault_file_system.hpp"
#include "support/pattern_state.hpp"
#include "support/small_mount.hpp"
#include "support/temp_dir.hpp"
#include "version/names.hpp"

namespace slackwater::test {
namespace {

namespace stdfs = std::filesystem;
constexpr std::uint64_t kMiB = 1u << 20;

// One trainer on a disk that can be told to fail. State n is what step n saved.
class Trainer {
 public:
  explicit Trainer(std::string path, std::uint64_t state_bytes = kMiB + 13)
      : path_(std::move(path)), state_({{"w", state_bytes}}) {}

  Options options;  // for the next open()

  void open() {
    Options chosen = options;
    chosen.path = path_;
    chosen.slab_bytes = kMiB;
    chosen.pool_bytes = 4 * kMiB;
    chosen.log = [this](LogLevel, std::string_view line) {
      const std::lock_guard lock(mutex_);
      log_ += fmt::format("{}\n", line);
    };
    auto disk = std::make_unique<FaultFileSystem>(*real_);
    fs = disk.get();
    for (const auto& prepare : prepared_) prepare(*fs);
    prepared_.clear();
    auto opened = open_engine(std::move(chosen), {.fs = std::move(disk), .clock = nullptr});
    if (!opened) throw std::runtime_error(opened.error().to_string());
    engine = std::make_unique<Engine>(std::move(*opened));
  }
  // What the disk of the next open() does.
  void prepare(std::function<void(FaultFileSystem&)> faults) { prepared_.push_back(std::move(faults)); }
  void close() {
    if (!engine) return;
    fs->release_hung();
    static_cast<void>(engine->close());
    engine.reset();
    fs = nullptr;
  }
  ~Trainer() { close(); }

  [[nodiscard]] Snapshot begin(std::uint64_t step) {
    state_.fill(step);
    auto saved = engine->save(step, state_.state());
    if (!saved) throw std::runtime_error(saved.error().to_string());
    static_cast<void>((*saved)->fence());
    return std::move(**saved);
  }
  [[nodiscard]] Status save(std::uint64_t step) { return begin(step).wait(Level::kCommitted, std::chrono::minutes(1)); }
  void must_save(std::uint64_t step) {
    const Status saved = save(step);
    ASSERT_TRUE(saved) << "step " << step << ": " << saved.error().to_string();
  }
  // The step restored; 0: nothing there. Its bytes are compared.
  [[nodiscard]] Result<std::uint64_t> restore(std::optional<std::uint64_t> step = {}) {
    auto restored = engine->restore({.step = step}, state_.plan());
    if (!restored) return fail(std::move(restored).error());
    if (!*restored) return 0;
    EXPECT_EQ(state_.number(), (*restored)->version.step);
    EXPECT_EQ(state_.difference(), std::nullopt);
    return (*restored)->version.step;
  }
  [[nodiscard]] std::string log() {
    const std::lock_guard lock(mutex_);
    return log_;
  }
  [[nodiscard]] std::string directory_of(std::uint64_t step, std::uint32_t attempt = 1) const {
    return fmt::format("{}/{}", path_, version_directory({step, attempt}));
  }
  [[nodiscard]] bool exists(std::uint64_t step, std::uint32_t attempt = 1) const {
    return stdfs::exists(directory_of(step, attempt) + "/" + kManifestName);
  }
  // As a killed run leaves it: files, but no decision.
  void leave_debris(std::uint64_t step, std::uint32_t attempt, std::uint64_t size_bytes) const {
    stdfs::create_directory(directory_of(step, attempt));
    std::ofstream(directory_of(step, attempt) + "/rank-00000.safetensors") << std::string(size_bytes, 'x');
  }

  std::unique_ptr<Engine> engine;
  FaultFileSystem* fs = nullptr;  // owned by the engine

 private:
  const std::string path_;
  PatternState state_;
  std::unique_ptr<FileSystem> real_ = make_posix_file_system();
  std::vector<std::function<void(FaultFileSystem&)>> prepared_;
  std::mutex mutex_;
  std::string log_;  // guarded by mutex_
};

class NothingLostTest : public ::testing::Test {
 protected:
  TempDir temp_;
  Trainer trainer_{temp_ / "run"};
};

TEST(FullDiskTest, DebrisOfAKilledRunDoesNotBlockTheNextOne) {
  const SmallMount disk("tmpfs", "size=28m");
  if (!disk.mounted()) GTEST_SKIP() << "mounting is not permitted here";
  Trainer trainer(disk / "run", 8 * kMiB - 65536);
  trainer.options.keep = 2;
  trainer.open();
  trainer.must_save(1);
  trainer.must_save(2);
  trainer.close();
  trainer.leave_debris(3, 1, 8 * kMiB);
  trainer.open();
  EXPECT_EQ(trainer.restore().value_or(99), 2u);
  for (std::uint64_t step = 3; step <= 6; ++step) trainer.must_save(step);
}

TEST(FullDiskTest, ADiskOfKeepPlusOneStatesIsEnough) {
  const SmallMount disk("tmpfs", "size=26m");
  if (!disk.mounted()) GTEST_SKIP() << "mounting is not permitted here";
  Trainer trainer(disk / "run", 8 * kMiB - 65536);
  trainer.options.keep = 2;
  for (std::uint64_t start = 0; start < 3; ++start) {
    trainer.open();
    EXPECT_EQ(trainer.restore().value_or(99), start * 4);
    for (std::uint64_t step = start * 4 + 1; step <= start * 4 + 4; ++step) trainer.must_save(step);
    trainer.close();
    trainer.leave_debris(start * 4 + 5, static_cast<std::uint32_t>(start + 1), 6 * kMiB);
  }
}

// Killed between its commit and the delete that belongs to it: more versions than `keep`, and not a block is free.
TEST(FullDiskTest, ARunKilledBeforeItDeletedDoesNotBlockTheNextOne) {
  const SmallMount disk("tmpfs", "size=26m");
  if (!disk.mounted()) GTEST_SKIP() << "mounting is not permitted here";
  Trainer trainer(disk / "run", 8 * kMiB - 65536);
  trainer.options.keep = 3;
  trainer.open();
  for (std::uint64_t step = 1; step <= 3; ++step) trainer.must_save(step);
  trainer.close();
  trainer.options.keep = 1;  // so two of them are to go: as many as a version and the file of an attempt need
  const Ballast rest(disk / ".");
  trainer.open();
  EXPECT_EQ(trainer.restore().value_or(99), 3u);
  trainer.must_save(4);
  trainer.must_save(5);
}

// Each file that a commit makes may be the one that finds no space.
TEST_F(NothingLostTest, ACommitThatFindsNoSpaceMakesSomeAndGoesOn) {
  for (const auto& [call, path] : std::vector<std::pair<FsCall, std::string>>{{FsCall::kAllocate, ".safetensors"},
                                                                              {FsCall::kOpen, "/index"},
                                                                              {FsCall::kOpen, ".record"},
                                                                              {FsCall::kOpen, "/.manifest.json."},
                                                                              {FsCall::kWriteAt, "/.manifest.json."},
                                                                              {FsCall::kLink, "/manifest.json"}}) {
    SCOPED_TRACE(path);
    TempDir temp;
    Trainer trainer(temp / "run");
    trainer.options.keep = 1;
    trainer.open();
    trainer.must_save(1);
    trainer.leave_debris(7, 0, 64);  // for the clean-up
    trainer.fs->fail(call, ENOSPC, {.path = path});
    trainer.must_save(2);
    EXPECT_FALSE(stdfs::exists(trainer.directory_of(7, 0))) << trainer.log();
  }
}

TEST_F(NothingLostTest, AnErrorThatComesAndGoesIsNotTakenForDamage) {
  for (const auto& [call, path] : std::vector<std::pair<FsCall, std::string>>{{FsCall::kOpen, "step-0000000003"},
                                                                              {FsCall::kOpen, "rank-00000.record"},
                                                                              {FsCall::kOpen, ".safetensors"},
                                                                              {FsCall::kReadAt, "step-0000000003"},
                                                                              {FsCall::kFileStatus, "step-0000000003"},
                                                                              {FsCall::kQueueRead, ".safetensors"}}) {
    SCOPED_TRACE(path);
    TempDir temp;
    Trainer trainer(temp / "run");
    trainer.options.keep = 1;
    trainer.open();
    for (std::uint64_t step = 1; step <= 3; ++step) trainer.must_save(step);
    trainer.close();
    trainer.prepare([&](FaultFileSystem& fs) { fs.fail(call, EIO, {.path = path}); });
    trainer.open();
    const auto restored = trainer.restore();
    ASSERT_TRUE(restored) << restored.error().to_string();
    EXPECT_EQ(*restored, 3u);
  }
}

TEST_F(NothingLostTest, StorageThatCannotBeReadIsAnErrorAndCostsNoCheckpoint) {
  for (const int trouble : {EIO, EACCES, ESTALE}) {
    SCOPED_TRACE(trouble);
    TempDir temp;
    Trainer trainer(temp / "run");
    trainer.options.keep = 3;
    trainer.open();
    for (std::uint64_t step = 1; step <= 3; ++step) trainer.must_save(step);
    trainer.close();
    trainer.prepare([&](FaultFileSystem& fs) {
      fs.fail(FsCall::kOpen, trouble, {.times = kAlways, .path = "step-0000000003.a1/rank-00000.safetensors"});
    });
    trainer.open();
    const auto refused = trainer.restore();
    ASSERT_FALSE(refused) << "step " << *refused << " was restored instead";
    EXPECT_NE(refused.error().kind, ErrorKind::kCorrupt);
    EXPECT_NE(refused.error().to_string().find("rank-00000.safetensors"), std::string::npos)
        << refused.error().to_string();
    trainer.fs->clear_faults();
    EXPECT_EQ(trainer.restore().value_or(99), 3u);
    trainer.must_save(4);
    trainer.close();
    EXPECT_TRUE(trainer.exists(3));
  }
}

TEST_F(NothingLostTest, AnArchiveWhoseManifestCannotBeReadForAWhileIsNotDeletedLater) {
  for (const int trouble : {EIO, EACCES}) {
    SCOPED_TRACE(trouble);
    TempDir temp;
    Trainer trainer(temp / "run");
    trainer.options.keep = 1;
    trainer.options.keep_every = 2;
    trainer.open();
    for (std::uint64_t step = 1; step <= 5; ++step) trainer.must_save(step);
    trainer.close();
    trainer.prepare([&](FaultFileSystem& fs) {
      fs.fail(FsCall::kOpen, trouble, {.times = kAlways, .path = "step-0000000002.a1/manifest.json"});
    });
    trainer.open();
    EXPECT_EQ(trainer.restore().value_or(99), 5u);
    trainer.must_save(6);
    trainer.close();
    trainer.open();  // it can be read again
    EXPECT_EQ(trainer.restore().value_or(99), 6u);
    trainer.must_save(7);
    trainer.close();
    EXPECT_TRUE(trainer.exists(2)) << "the archive of step 2 was deleted\n" << trainer.log();
    trainer.open();
    EXPECT_EQ(trainer.restore(2).value_or(99), 2u);
  }
}

TEST_F(NothingLostTest, ADamagedVersionIsKept) {
  trainer_.options.keep = 1;
  trainer_.open();
  for (std::uint64_t step = 1; step <= 3; ++step) {
    trainer_.must_save(step);
    if (step == 2) {
      ASSERT_TRUE(trainer_.engine->pin(2));
    }
  }
  trainer_.close();
  {
    std::fstream file(trainer_.directory_of(3) + "/rank-00000.safetensors", std::ios::in | std::ios::out);
    file.seekp(4200);
    file.put('?');
  }
  trainer_.open();
  EXPECT_EQ(trainer_.restore().value_or(99), 2u);
  for (std::uint64_t step = 3; step <= 5; ++step) trainer_.must_save(step);
  trainer_.close();
  EXPECT_TRUE(trainer_.exists(3, 1)) << trainer_.log();
}

// Neither the commit itself nor what follows it on other threads looks at every version there is.
TEST_F(NothingLostTest, ACommitAsksTheDiskNoMoreOftenTheMoreVersionsThereAre) {
  trainer_.options.keep = 0;
  trainer_.open();
  const auto calls_of_step = [&](std::uint64_t step) {
    const std::size_t before = trainer_.fs->calls().size();
    trainer_.must_save(step);
    EXPECT_TRUE(trainer_.engine->wait(Level::kCommitted));
    return trainer_.fs->calls().size() - before;
  };
  for (std::uint64_t step = 1; step <= 4; ++step) trainer_.must_save(step);
  EXPECT_EQ(trainer_.engine->remove(999'999).error().kind, ErrorKind::kNotFound);  // waits for the first clean-up
  const std::size_t with_four = calls_of_step(5);
  for (std::uint64_t step = 6; step <= 60; ++step) trainer_.must_save(step);
  EXPECT_EQ(calls_of_step(61), with_four);
}

TEST_F(NothingLostTest, DeleteTakesTheDamagedVersionOfAStepFirst) {
  trainer_.options.keep = 0;
  trainer_.open();
  trainer_.must_save(1);
  trainer_.must_save(2);
  trainer_.close();
  std::fstream(trainer_.directory_of(2) + "/rank-00000.safetensors", std::ios::in | std::ios::out | std::ios::binary)
      .seekp(9000)
      .write("damage", 6);
  trainer_.open();
  EXPECT_EQ(trainer_.restore().value_or(99), 1u);
  trainer_.must_save(2);
  ASSERT_TRUE(trainer_.engine->remove(2));
  EXPECT_FALSE(trainer_.exists(2, 1));
  EXPECT_TRUE(trainer_.exists(2, 2)) << trainer_.log();
  ASSERT_TRUE(trainer_.engine->remove(2));
  EXPECT_FALSE(trainer_.exists(2, 2));
}

// delete() keeps the cleaner away and waits for a commit, which finds no space and waits for the cleaner.
TEST_F(NothingLostTest, ADeleteBesideACommitThatFindsNoSpaceDoesNotHang) {
  trainer_.open();
  trainer_.must_save(1);
  trainer_.fs->hang(FsCall::kOpen, {.path = "step-0000000002.a1/index"});
  trainer_.fs->fail(FsCall::kOpen, ENOSPC, {.path = "step-0000000002.a1/rank-00000.record"});
  Snapshot snapshot = trainer_.begin(2);
  trainer_.fs->wait_hung(1);
  const std::jthread deleting([&] { EXPECT_TRUE(trainer_.engine->remove(1)); });
  // By now the delete waits for the commit. If it does not yet, the test proves nothing, but does not fail either.
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  trainer_.fs->release_hung();
  const Status committed = snapshot.wait(Level::kCommitted, std::chrono::seconds(30));
  EXPECT_TRUE(committed || committed.error().kind == ErrorKind::kNoSpace) << committed.error().to_string();
}

TEST_F(NothingLostTest, ADeleteDoesNotDelayACommit) {
  trainer_.options.keep = 1;
  trainer_.open();
  trainer_.must_save(1);
  trainer_.fs->hang(FsCall::kUnlink, {.path = "step-0000000001"});
  trainer_.must_save(2);
  trainer_.fs->wait_hung(1);
  trainer_.must_save(3);
  trainer_.must_save(4);
}

TEST_F(NothingLostTest, ARestoreWaitsForTheStepsInFlight) {
  trainer_.open();
  trainer_.must_save(1);
  trainer_.fs->hold_writes();
  const Snapshot second = trainer_.begin(2);
  trainer_.fs->wait_held(1);
  auto restoring = std::async(std::launch::async, [&] { return trainer_.restore(); });
  EXPECT_EQ(restoring.wait_for(std::chrono::milliseconds(200)), std::future_status::timeout);
  trainer_.fs->release_writes();
  EXPECT_EQ(restoring.get().value_or(99), 2u);
}

// Step 1 is being deleted, and the delete hangs. Step 3 makes none go: step 2 stays by keep_every.
class DuringADeleteTest : public NothingLostTest {
 protected:
  void SetUp() override {
    trainer_.options.keep = 1;
    trainer_.options.keep_every = 2;
    trainer_.open();
    trainer_.must_save(1);
    trainer_.fs->hang(FsCall::kUnlink, {.path = "step-0000000001"});
    trainer_.must_save(2);
    trainer_.fs->wait_hung(1);
  }
  // Returns when the cleaner has nothing left to do.
  void let_it_end() {
    trainer_.fs->release_hung();
    EXPECT_EQ(trainer_.engine->remove(999'999).error().kind, ErrorKind::kNotFound);
  }
  // "2 3*": the versions that the engine knows of, with a star for a pin.
  [[nodiscard]] std::string known() const {
    std::string text;
    for (const VersionInfo& version : trainer_.engine->versions())
      text += fmt::format("{}{}{}", text.empty() ? "" : " ", version.step, version.pinned ? "*" : "");
    return text;
  }
};

TEST_F(DuringADeleteTest, APinIsNotForgotten) {
  ASSERT_TRUE(trainer_.engine->pin(2));
  let_it_end();
  EXPECT_EQ(known(), "2*");
}

TEST_F(DuringADeleteTest, ACommitIsNotForgottenNorThatItWasPinned) {
  trainer_.must_save(3);
  ASSERT_TRUE(trainer_.engine->pin(3));
  let_it_end();
  EXPECT_EQ(known(), "2 3*");
}

TEST_F(DuringADeleteTest, WhatExpiresMeanwhileGoesAfterIt) {
  trainer_.must_save(3);
  trainer_.must_save(4);
  let_it_end();
  EXPECT_EQ(known(), "2 4");
  EXPECT_FALSE(trainer_.exists(3)) << trainer_.log();
}

// What is being deleted must not be chosen. (That it waits cannot be seen without some time.)
TEST_F(DuringADeleteTest, ARestoreWaitsForItsEnd) {
  auto restoring = std::async(std::launch::async, [&] { return trainer_.restore(); });
  EXPECT_EQ(restoring.wait_for(std::chrono::milliseconds(200)), std::future_status::timeout);
  trainer_.fs->release_hung();
  EXPECT_EQ(restoring.get().value_or(99), 2u);
}

TEST_F(DuringADeleteTest, ADeleteByHandWaitsForItsEnd) {
  trainer_.must_save(3);
  auto removing = std::async(std::launch::async, [&] { return trainer_.engine->remove(2); });
  EXPECT_EQ(removing.wait_for(std::chrono::milliseconds(200)), std::future_status::timeout);
  trainer_.fs->release_hung();
  EXPECT_TRUE(removing.get());
  EXPECT_EQ(known(), "3");
}

TEST_F(NothingLostTest, ADeleteByHandDelaysNoCommit) {
  trainer_.options.keep = 0;
  trainer_.open();
  trainer_.must_save(1);
  trainer_.must_save(2);
  trainer_.fs->hang(FsCall::kUnlink, {.path = "step-0000000001"});
  auto removing = std::async(std::launch::async, [&] { return trainer_.engine->remove(1); });
  trainer_.fs->wait_hung(1);
  trainer_.must_save(3);
  ASSERT_TRUE(trainer_.engine->pin(3));
  EXPECT_EQ(removing.wait_for(std::chrono::milliseconds(0)), std::future_status::timeout);
  trainer_.fs->release_hung();
  EXPECT_TRUE(removing.get());
  EXPECT_FALSE(trainer_.exists(1));
}

TEST_F(DuringADeleteTest, ACloseWaitsForAllThatIsToGo) {
  trainer_.must_save(3);
  trainer_.must_save(4);
  auto closing = std::async(std::launch::async, [&] { return trainer_.engine->close(); });
  EXPECT_EQ(closing.wait_for(std::chrono::milliseconds(200)), std::future_status::timeout);
  trainer_.fs->release_hung();
  EXPECT_TRUE(closing.get());
  EXPECT_FALSE(trainer_.exists(3)) << trainer_.log();
}

}  // namespace
}  // namespace slackwater::test
