// Lower tiers that do not respond: a restore, a save and close() must not wait for them.
#include <filesystem>
#include <functional>
#include <thread>

#include "engine/engine_impl.hpp"
#include "support/fault_file_system.hpp"
#include "support/leaves_threads.hpp"
#include "unit/engine/engine_fixture.hpp"

namespace slackwater::test {
namespace {

namespace stdfs = std::filesystem;
using std::chrono::milliseconds;

class DeadTierTest : public EngineTest {
 protected:
  // Steps 1 and 2 on tier 0, and a copy of both on the lower tier.
  void SetUp() override {
    model_.add("w", 3 * kMiB);
    Engine engine = open(EngineTest::options());
    save_and_commit(engine, 1, model_);
    save_and_commit(engine, 2, model_);
    ASSERT_TRUE(engine.close());
    stdfs::copy(upper(), lower(), stdfs::copy_options::recursive);
    stdfs::remove(lower() + "/.slackwater/lock");
  }
  [[nodiscard]] std::string upper() { return EngineTest::options().path; }
  [[nodiscard]] std::string lower() { return directory_.path() + "/lower"; }
  [[nodiscard]] std::string version(std::uint64_t step) {
    return upper() + "/step-000000000" + std::to_string(step) + ".a1";
  }
  // An engine whose tiers have file systems of their own, which the test can break.
  Engine open_tiered(milliseconds tier_answer_timeout = std::chrono::hours(1)) {
    Options options = EngineTest::options();
    options.log = [lines = lines_](LogLevel, std::string_view message) {
      const std::lock_guard lock(lines->mutex);
      lines->text += std::string(message) + "\n";
    };
    options.tiers = {{.location = lower()}};
    auto upper_files = std::make_unique<FaultFileSystem>(*real_);
    auto lower_files = std::make_unique<FaultFileSystem>(*real_);
    if (hangs_at_open_) lower_files->hang(FsCall::kIdentity);
    upper_files_ = upper_files.get();
    lower_files_ = lower_files.get();
    EngineDependencies parts{.fs = std::move(upper_files), .clock = nullptr};
    parts.tiers.emplace_back(options.tiers[0], lower(), std::move(lower_files));
    parts.tier_answer_timeout = tier_answer_timeout;
    auto engine = open_engine(std::move(options), std::move(parts));
    if (!engine) throw std::runtime_error(engine.error().to_string());
    return std::move(*engine);
  }
  static void until(const std::function<bool()>& condition) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (!condition()) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "it does not happen";
      std::this_thread::sleep_for(milliseconds(1));
    }
  }

  Model model_;
  const std::shared_ptr<FileSystem> real_ = make_posix_file_system();
  FaultFileSystem* upper_files_ = nullptr;  // owned by the engine
  FaultFileSystem* lower_files_ = nullptr;
  bool hangs_at_open_ = false;
};

TEST_F(DeadTierTest, ARestoreDoesNotWaitForItIfTier0HasACheckpoint) {
  Engine engine = open_tiered(milliseconds(20));
  lower_files_->hang(FsCall::kList);
  Reader reader;
  EXPECT_EQ(restore(engine, reader), 2u);
  EXPECT_NE(log().find("the tier " + lower() + " cannot be reached: it did not answer within 20 ms"), std::string::npos)
      << log();
  lower_files_->release_hung();
  const Status closed = engine.close();
  EXPECT_TRUE(closed) << closed.error().to_string();
}

TEST_F(DeadTierTest, ARestoreWaitsForItIfNoOtherTierHasACheckpoint) {
  stdfs::remove_all(upper());
  Engine engine = open_tiered(milliseconds(20));
  lower_files_->hang(FsCall::kList);
  Reader reader;
  std::uint64_t step = 0;
  std::jthread trainer([&] { step = restore(engine, reader); });
  lower_files_->wait_hung(1);
  lower_files_->release_hung();
  trainer.join();
  EXPECT_EQ(step, 2u);
  EXPECT_TRUE(engine.close());
}

TEST_F(DeadTierTest, CloseDoesNotWaitForARepairThatReadsFromIt) {
  {
    Engine engine = open_tiered();
    lower_files_->hang(FsCall::kOpen, {.path = "manifest.json"});  // tier 0 has it: only a repair reads it
    Reader reader;
    ASSERT_EQ(restore(engine, reader), 2u);
    lower_files_->wait_hung(1);
    const Status closed = engine.close();
    EXPECT_TRUE(closed) << closed.error().to_string();
    EXPECT_NE(log().find("the storage at a lower tier of " + upper() + " does not respond"), std::string::npos)
        << log();
    lower_files_->release_hung();
  }
  Engine engine = open_when_free(EngineTest::options());
  EXPECT_EQ(steps(engine), (std::vector<std::uint64_t>{1, 2}));
}

TEST_F(DeadTierTest, CloseDoesNotWaitForAProbeOfIt) {
  {
    Engine engine = open_tiered(milliseconds(20));
    lower_files_->hang(FsCall::kList);
    Reader reader;
    ASSERT_EQ(restore(engine, reader), 2u);
    const Status closed = engine.close();
    EXPECT_TRUE(closed) << closed.error().to_string();
    lower_files_->release_hung();
  }
  Engine engine = open_when_free(EngineTest::options());
  EXPECT_EQ(steps(engine), (std::vector<std::uint64_t>{1, 2}));
}

TEST_F(DeadTierTest, NeitherOpenNorCloseWaitsForAComparisonOfItsDirectory) {
  hangs_at_open_ = true;
  {
    Engine engine = open_tiered(milliseconds(20));
    lower_files_->wait_hung(1);
    save_and_commit(engine, 3, model_);
    ASSERT_TRUE(engine.wait_copied());
    const Status closed = engine.close();
    EXPECT_TRUE(closed) << closed.error().to_string();
    EXPECT_NE(log().find("the storage at a lower tier of " + upper() + " does not respond"), std::string::npos)
        << log();
    lower_files_->release_hung();
  }
  hangs_at_open_ = false;
  Engine engine = open_when_free(EngineTest::options());
  EXPECT_EQ(steps(engine), (std::vector<std::uint64_t>{2, 3}));
}

// A repair publishes while nobody deletes. The claim of an attempt waits for that too, and with it the first save.
TEST_F(DeadTierTest, ASaveDoesNotWaitForARepairThatItHoldsUp) {
  stdfs::remove_all(version(2));
  Engine engine = open_tiered();
  upper_files_->hang(FsCall::kMakeDirectory, {.path = version(2).substr(upper().size())});
  Reader reader;
  ASSERT_EQ(restore(engine, reader), 2u);
  upper_files_->wait_hung(1);  // the repair has begun, and knows which files there are
  upper_files_->release_hung_until(FsCall::kSyncDirectory, {.path = version(2).substr(upper().size())});
  upper_files_->wait_hung(2);  // all bytes have been read below
  for (const FsCall call : {FsCall::kOpen, FsCall::kList, FsCall::kStatus}) lower_files_->hang(call);
  upper_files_->release_hung();
  save_and_commit(engine, 3, model_);
  until([&] { return log().find("step 2 was repaired on " + upper()) != std::string::npos; });
  lower_files_->release_hung();
  const Status closed = engine.close();
  EXPECT_TRUE(closed) << closed.error().to_string();
}

}  // namespace
}  // namespace slackwater::test
