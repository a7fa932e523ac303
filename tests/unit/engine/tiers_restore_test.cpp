// Restore over several tiers: each file from the fastest tier that has it intact, and tier 0 is repaired afterwards.
// The lower tiers are directories that hold copies of what an engine wrote to tier 0.
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <thread>

#include "engine/engine_impl.hpp"
#include "support/fault_file_system.hpp"
#include "support/file_bytes.hpp"
#include "unit/engine/engine_fixture.hpp"
#include "version/catalog.hpp"

namespace slackwater::test {
namespace {

namespace stdfs = std::filesystem;

class TiersRestoreTest : public EngineTest {
 protected:
  static constexpr const char* kData = "rank-00000.safetensors";

  // Steps 1 and 2 on tier 0, and a copy of both on each lower tier.
  void SetUp() override {
    model_.add("first", 1000);
    model_.add("layer.w", 3 * kMiB);
    Engine engine = open(EngineTest::options());
    for (std::uint64_t step = 1; step <= 2; ++step) {
      save_and_commit(engine, step, model_);
      saved_[step] = model_.copy();
      model_.update();
    }
    ASSERT_TRUE(engine.close());
    for (const std::string& tier : {lower(), lowest()}) copy_to(tier);
  }

  [[nodiscard]] std::string upper() { return EngineTest::options().path; }
  [[nodiscard]] std::string lower() { return directory_.path() + "/lower"; }
  [[nodiscard]] std::string lowest() { return directory_.path() + "/lowest"; }
  void copy_to(const std::string& tier) {
    stdfs::copy(upper(), tier, stdfs::copy_options::recursive);
    stdfs::remove(tier + "/.slackwater/lock");
  }
  Options options(unsigned tiers = 1) {
    Options options = EngineTest::options();
    options.log = [lines = lines_](LogLevel, std::string_view message) {
      std::lock_guard lock(lines->mutex);
      lines->text += std::string(message) + "\n";
    };
    options.tiers.push_back({.location = lower()});
    if (tiers > 1) options.tiers.push_back({.location = lowest()});
    return options;
  }
  static std::string in(const std::string& tier, std::uint64_t step, const std::string& name) {
    return tier + "/step-000000000" + std::to_string(step) + ".a1/" + name;
  }
  static void flip(const std::string& path, std::uint64_t offset) {
    std::fstream stream(path, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(static_cast<std::streamoff>(offset));
    const int byte = stream.get();
    stream.seekp(static_cast<std::streamoff>(offset));
    stream.put(static_cast<char>(byte ^ 0x10));
    ASSERT_TRUE(stream.good());
  }
  static void lose(const std::string& tier) { stdfs::remove_all(tier); }

  // An engine whose storage the test can break, and count.
  Engine open_faulty(Options options) {
    auto faulty = std::make_unique<FaultFileSystem>(*real_);
    faults_ = faulty.get();
    auto engine = open_engine(std::move(options), {.fs = std::move(faulty), .clock = nullptr});
    if (!engine) throw std::runtime_error(engine.error().to_string());
    return std::move(*engine);
  }
  void expect_restored(Engine& engine, std::uint64_t step) {
    Reader reader;
    const auto restored = engine.restore({}, reader.plan());
    ASSERT_TRUE(restored) << restored.error().to_string();
    ASSERT_TRUE(*restored);
    EXPECT_EQ((*restored)->version.step, step);
    EXPECT_EQ(reader.read, saved_.at(step));
    damaged_ = (*restored)->damaged;
  }
  static void until(const std::function<bool()>& condition) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (!condition()) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "it does not happen";
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  void expect_repaired(std::uint64_t step) {
    for (const char* name : {kData, "rank-00000.record", "index", "manifest.json"}) {
      until([&] {
        std::error_code none;
        return stdfs::file_size(in(upper(), step, name), none) == stdfs::file_size(in(lower(), step, name)) && !none &&
               read_file(in(upper(), step, name)) == read_file(in(lower(), step, name));
      });
    }
  }

  // The steps that are set aside on a tier.
  [[nodiscard]] std::vector<std::uint64_t> aside(const std::string& tier) const {
    std::vector<std::uint64_t> steps;
    const auto catalog = scan_catalog(*real_, tier);
    if (!catalog) throw std::runtime_error(catalog.error().to_string());
    for (const SetAside& version : catalog->set_aside()) steps.push_back(version.version.step);
    return steps;
  }
  void expect_restored_without_tier_0(Engine& engine, std::uint64_t step, std::optional<std::uint64_t> asked = {}) {
    faults_->fail(FsCall::kList, EIO, {.times = kAlways, .path = upper()});
    Reader reader;
    ASSERT_EQ(restore(engine, reader, asked), step);
    EXPECT_NE(log().find("the tier " + upper() + " cannot be reached"), std::string::npos) << log();
  }

  Model model_;
  std::map<std::uint64_t, std::map<std::string, Bytes>> saved_;
  std::vector<std::string> damaged_;
  const std::unique_ptr<FileSystem> real_ = make_posix_file_system();
  FaultFileSystem* faults_ = nullptr;  // owned by the engine
};

TEST_F(TiersRestoreTest, WithTier0IntactNoLowerTierIsReadForData) {
  Engine engine = open_faulty(options());
  faults_->watch(FsCall::kQueueRead, lower());
  expect_restored(engine, 2);
  EXPECT_EQ(faults_->watched_calls(), 0u);
  EXPECT_EQ(log().find("instead"), std::string::npos) << log();
}

TEST_F(TiersRestoreTest, ALostTier0IsRestoredFromTheTierBelowAndRepaired) {
  lose(upper());
  Engine engine = open(options());
  expect_restored(engine, 2);
  EXPECT_TRUE(damaged_.empty());
  expect_repaired(2);
  ASSERT_TRUE(engine.close());
  EXPECT_NE(log().find("step 2 was repaired on " + upper()), std::string::npos) << log();
  // Tier 0 can be read alone now, and says nothing about a missing attempt file.
  const auto catalog = scan_catalog(*real_, upper());
  ASSERT_TRUE(catalog);
  EXPECT_TRUE(catalog->warnings.empty());
  ASSERT_EQ(catalog->live_versions().size(), 1u);
  EXPECT_EQ(catalog->live_versions()[0].step, 2u);
}

TEST_F(TiersRestoreTest, TheRunGoesOnAfterARestoreFromBelow) {
  lose(upper());
  {
    Engine engine = open(options());
    expect_restored(engine, 2);
    save_and_commit(engine, 3, model_);
    saved_[3] = model_.copy();
    ASSERT_TRUE(engine.close());
  }
  Engine engine = open(options());
  expect_restored(engine, 3);
}

TEST_F(TiersRestoreTest, OnlyTheDamagedFileComesFromBelow) {
  flip(in(upper(), 2, kData), 2 * kMiB);
  Engine engine = open_faulty(options());
  faults_->watch(FsCall::kQueueRead, in(lower(), 2, ""));
  expect_restored(engine, 2);
  EXPECT_TRUE(damaged_.empty());
  const std::uint64_t data_reads = faults_->watched_calls();
  EXPECT_GT(data_reads, 0u);
  EXPECT_NE(log().find("is read from " + lower() + " instead"), std::string::npos) << log();
  expect_repaired(2);
}

TEST_F(TiersRestoreTest, AMissingRecordComesFromBelowWhileTheDataStaysOnTier0) {
  stdfs::remove(in(upper(), 2, "rank-00000.record"));
  Engine engine = open_faulty(options());
  faults_->watch(FsCall::kQueueRead, lower());
  expect_restored(engine, 2);
  EXPECT_EQ(faults_->watched_calls(), 0u) << "the data was read from below";
  expect_repaired(2);
}

TEST_F(TiersRestoreTest, ADamagedManifestComesFromBelow) {
  flip(in(upper(), 2, "manifest.json"), 20);
  Engine engine = open(options());
  expect_restored(engine, 2);
  EXPECT_TRUE(damaged_.empty());
  expect_repaired(2);
}

TEST_F(TiersRestoreTest, ADamagedAttemptFileComesFromBelow) {
  flip(upper() + "/.slackwater/attempt-0001.json", 20);
  Engine engine = open(options());
  const std::string warned_at_open = log();
  expect_restored(engine, 2);
  EXPECT_EQ(log().find("taken as live", warned_at_open.size()), std::string::npos) << log();
}

TEST_F(TiersRestoreTest, AThirdTierServesWhatTheSecondHasDamagedToo) {
  flip(in(upper(), 2, kData), 2 * kMiB);
  flip(in(lower(), 2, kData), 2 * kMiB);
  Engine engine = open(options(2));
  expect_restored(engine, 2);
  EXPECT_TRUE(damaged_.empty());
}

TEST_F(TiersRestoreTest, DamagedOnAllTiersTheVersionBeforeIsUsedAndTheMessageSaysWhatWasTried) {
  flip(in(upper(), 2, kData), 2 * kMiB);
  flip(in(lower(), 2, kData), 2 * kMiB);
  Engine engine = open(options());
  expect_restored(engine, 1);
  ASSERT_EQ(damaged_.size(), 1u);
  EXPECT_NE(damaged_[0].find("step 2"), std::string::npos) << damaged_[0];
  EXPECT_NE(damaged_[0].find("no tier has it intact: " + upper() + ": "), std::string::npos) << damaged_[0];
  EXPECT_NE(damaged_[0].find(lower() + ": "), std::string::npos) << damaged_[0];
}

TEST_F(TiersRestoreTest, AVersionThatOnlyALowerTierHasIsFound) {
  stdfs::remove_all(in(upper(), 2, ""));
  Engine engine = open(options());
  expect_restored(engine, 2);
  expect_repaired(2);
}

TEST_F(TiersRestoreTest, TheNewestAttemptOnAnyTierDecidesWhatIsLive) {
  // On tier 0, a later start rolled back to step 1. The copy of step 2 below must not come back.
  {
    Engine engine = open(EngineTest::options());
    Reader reader;
    ASSERT_EQ(restore(engine, reader, 1), 1u);
    save_and_commit(engine, 5, model_);
    ASSERT_TRUE(engine.close());
  }
  stdfs::remove_all(upper() + "/step-0000000005.a2");
  Engine engine = open(options());
  expect_restored(engine, 1);
}

TEST_F(TiersRestoreTest, AnUnreachableTierIsAnErrorIfTheOthersHaveNothing) {
  lose(upper());
  Engine engine = open_faulty(options());
  faults_->fail(FsCall::kList, EIO, {.times = kAlways, .path = lower()});
  Reader reader;
  const auto restored = engine.restore({}, reader.plan());
  ASSERT_FALSE(restored) << "a tier that does not answer was taken for an empty one";
  EXPECT_EQ(restored.error().kind, ErrorKind::kIo);
  EXPECT_NE(restored.error().message.find("the tier " + lower() + " cannot be reached"), std::string::npos)
      << restored.error().to_string();
}

TEST_F(TiersRestoreTest, AMountThatIsNotThereIsNotAnEmptyTier) {
  lose(upper());
  Options with = options();
  with.tiers[0].location = directory_.path() + "/no-mount/run";
  Engine engine = open(std::move(with));
  Reader reader;
  const auto restored = engine.restore({}, reader.plan());
  ASSERT_FALSE(restored);
  EXPECT_NE(restored.error().message.find("no-mount/run cannot be reached"), std::string::npos)
      << restored.error().to_string();
}

TEST_F(TiersRestoreTest, AnUnreachableTierIsAWarningIfAnotherHasACheckpoint) {
  Engine engine = open_faulty(options());
  faults_->fail(FsCall::kList, EIO, {.times = kAlways, .path = lower()});
  expect_restored(engine, 2);
  EXPECT_NE(log().find("the tier " + lower() + " cannot be reached"), std::string::npos) << log();
}

TEST_F(TiersRestoreTest, ATierThatDoesNotExistYetIsEmpty) {
  lose(upper());
  lose(lower());
  Engine engine = open(options());
  Reader reader;
  EXPECT_EQ(restore(engine, reader), 0u);
}

TEST_F(TiersRestoreTest, AStorageErrorOnTier0IsReadFromBelowAndIsNotDamage) {
  Engine engine = open_faulty(options());
  faults_->fail(FsCall::kQueueRead, EIO, {.times = kAlways, .path = in(upper(), 2, kData)});
  faults_->fail(FsCall::kReadAt, EIO, {.times = kAlways, .path = in(upper(), 2, kData)});
  expect_restored(engine, 2);
  EXPECT_TRUE(damaged_.empty());
}

TEST_F(TiersRestoreTest, AStorageErrorBelowIsNeverTakenForDamage) {
  flip(in(upper(), 2, kData), 2 * kMiB);
  Engine engine = open_faulty(options());
  for (const FsCall call : {FsCall::kQueueRead, FsCall::kReadAt})
    faults_->fail(call, EIO, {.times = kAlways, .path = in(lower(), 2, kData)});
  Reader reader;
  const auto restored = engine.restore({}, reader.plan());
  ASSERT_FALSE(restored) << "step " << (*restored)->version.step << " was restored";
  EXPECT_EQ(restored.error().kind, ErrorKind::kIo) << restored.error().to_string();
  EXPECT_TRUE(restored.error().retryable);
}

TEST_F(TiersRestoreTest, AStorageErrorOnOneTierIsNoDamageThoughTheOtherIsDamaged) {
  flip(in(lower(), 2, kData), 2 * kMiB);
  Engine engine = open_faulty(options());
  for (const FsCall call : {FsCall::kQueueRead, FsCall::kReadAt})
    faults_->fail(call, EIO, {.times = kAlways, .path = in(upper(), 2, kData)});
  Reader reader;
  const auto restored = engine.restore({}, reader.plan());
  ASSERT_FALSE(restored) << "step " << (*restored)->version.step << " was restored";
  EXPECT_EQ(restored.error().kind, ErrorKind::kIo) << restored.error().to_string();
}

TEST_F(TiersRestoreTest, AnInterruptedRepairIsContinuedByTheNextRestore) {
  lose(upper());
  {
    Engine engine = open_faulty(options());
    faults_->fail(FsCall::kLink, EIO, {.times = kAlways, .path = in(upper(), 2, "manifest.json")});
    expect_restored(engine, 2);
    until([&] { return log().find("could not be repaired") != std::string::npos; });
    ASSERT_TRUE(engine.close());
  }
  EXPECT_FALSE(stdfs::exists(in(upper(), 2, "manifest.json")));
  EXPECT_TRUE(list_versions(upper()).value().empty()) << "half a version is visible";
  Engine engine = open(options());
  expect_restored(engine, 2);
  expect_repaired(2);
}

TEST_F(TiersRestoreTest, ARepairPutsNothingBackThatRetentionWouldDelete) {
  lose(upper());
  Options with = options();
  with.keep = 1;
  Engine engine = open_faulty(with);
  faults_->hang(FsCall::kSyncDirectory, {.path = in(upper(), 2, "")});
  faults_->hang(FsCall::kMakeDirectory, {.path = in(upper(), 2, "").substr(0, in(upper(), 2, "").size() - 1)});
  expect_restored(engine, 2);
  faults_->wait_hung(1);
  save_and_commit(engine, 3, model_);
  faults_->release_hung();
  until([&] { return log().find("is not put back") != std::string::npos; });
  const Status closed = engine.close();
  ASSERT_TRUE(closed) << closed.error().to_string();
  const auto left = list_versions(upper());
  ASSERT_TRUE(left);
  ASSERT_EQ(left->size(), 1u);
  EXPECT_EQ(left->front().step, 3u);
}

// Tier 0 has steps 1 and 2, the lower tier has step 1, and tier 0 cannot be reached for a moment.
class UnreachedTier0Test : public TiersRestoreTest {
 protected:
  void SetUp() override {
    TiersRestoreTest::SetUp();
    stdfs::remove_all(in(lower(), 2, ""));
  }
  Options keeping(std::uint64_t keep) {
    Options with = options();
    with.keep = keep;
    return with;
  }
  // Step 1 expires with the commit of step 3. What counts as rolled back is deleted before it.
  void save_until_cleaned(Engine& engine) {
    faults_->clear_faults();
    save_and_commit(engine, 3, model_);
    until([&] { return !stdfs::exists(in(upper(), 1, "")); });
    ASSERT_TRUE(engine.close());
  }
};

TEST_F(UnreachedTier0Test, WhatIsOnlyThereIsSetAsideAndKept) {
  Engine engine = open_faulty(keeping(1));
  expect_restored_without_tier_0(engine, 1);
  save_until_cleaned(engine);
  EXPECT_TRUE(stdfs::exists(in(upper(), 2, "manifest.json"))) << "a rollback that nobody asked for has deleted it";
  EXPECT_EQ(aside(upper()), (std::vector<std::uint64_t>{2}));
  EXPECT_NE(log().find("step 2 on " + upper() + " is set aside and kept: restore(step=...) takes one of them, "),
            std::string::npos)
      << log();
  // As the warning says.
  Engine again = open(options());
  Reader reader;
  ASSERT_EQ(restore(again, reader, 2), 2u);
  EXPECT_EQ(reader.read, saved_.at(2));
}

TEST_F(UnreachedTier0Test, ARollbackDoesNotReachWhatItDidNotSee) {
  Engine engine = open_faulty(keeping(1));
  expect_restored_without_tier_0(engine, 1, 1);
  save_until_cleaned(engine);
  EXPECT_EQ(aside(upper()), (std::vector<std::uint64_t>{2}));
}

TEST_F(UnreachedTier0Test, ARollbackThatSawItLeavesItBehind) {
  Engine engine = open_faulty(keeping(1));
  Reader reader;
  ASSERT_EQ(restore(engine, reader, 1), 1u);
  save_until_cleaned(engine);
  EXPECT_FALSE(stdfs::exists(in(upper(), 2, "")));
}

TEST_F(UnreachedTier0Test, EarlierVersionsThereStayLive) {
  stdfs::remove_all(lower());
  copy_to(lower());
  stdfs::remove_all(in(lower(), 1, ""));
  Engine engine = open_faulty(keeping(5));
  expect_restored_without_tier_0(engine, 2);
  faults_->clear_faults();
  save_and_commit(engine, 3, model_);
  ASSERT_TRUE(engine.close());
  EXPECT_EQ(list_versions(upper()).value().size(), 3u);
  EXPECT_TRUE(aside(upper()).empty());
}

TEST_F(UnreachedTier0Test, UntilItCanBeReadStepsFailAndThenTheyGoOn) {
  Engine engine = open_faulty(keeping(1));
  expect_restored_without_tier_0(engine, 1);
  const Status failed = save(engine, 2, model_).wait(Level::kCommitted);
  ASSERT_FALSE(failed) << "an attempt was claimed without knowing what is there";
  EXPECT_NE(failed.error().message.find("steps are not saved until the directory can be read"), std::string::npos)
      << failed.error().to_string();
  static_cast<void>(engine.wait(Level::kCommitted));  // told once is enough
  save_until_cleaned(engine);
  EXPECT_EQ(aside(upper()), (std::vector<std::uint64_t>{2}));
}

TEST_F(UnreachedTier0Test, IfNoOtherTierHasACheckpointTheRestoreFails) {
  lose(lower());
  Engine engine = open_faulty(keeping(1));
  faults_->fail(FsCall::kList, EIO, {.times = kAlways, .path = upper()});
  Reader reader;
  const auto restored = engine.restore({}, reader.plan());
  ASSERT_FALSE(restored) << "a tier that does not answer was taken for an empty one";
  EXPECT_NE(restored.error().message.find("the tier " + upper() + " cannot be reached"), std::string::npos)
      << restored.error().to_string();
}

}  // namespace
}  // namespace slackwater::test
