#include "engine/memory_tier.hpp"

#include <cerrno>
#include <chrono>
#include <fstream>
#include <memory>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "engine/pipeline_maker.hpp"
#include "keeper/keeper_client.hpp"
#include "keeper/keeper_server.hpp"
#include "support/fault_file_system.hpp"
#include "support/temp_dir.hpp"
#include "unit/keeper/staged.hpp"
#include "version/catalog.hpp"
#include "version/version_store.hpp"

namespace slackwater::test {
namespace {

// A keeper on a thread of the test, with a disk of its own. An earlier trainer has staged step 7 there and is gone.
class MemoryTierTest : public ::testing::Test {
 protected:
  // Where the keeper hangs when it writes step 7.
  explicit MemoryTierTest(FsCall hangs = FsCall::kWriteAt) {
    {
      auto store = VersionStore::open(*real_, clock_, root_, Log(), VersionStore::Role::kLeader).value();
      attempt_ = store->attempt().claim("test", {}, {"me"}).value();
      EXPECT_TRUE(store->make_version(7).has_value());
    }
    keeper_disk_.hang(hangs);
    server_ = std::make_unique<KeeperServer>(
        KeeperOptions{.directory = root_, .idle_within = std::chrono::milliseconds(10)}, keeper_disk_, clock_,
        Log([](LogLevel, std::string_view) {}), listen_at(keeper_address(root_, 0).value()).value(), UniqueFd());
    thread_ = std::thread([this] { static_cast<void>(server_->run()); });
    stage_and_leave(settings_, name(), attempt_.run);
    keeper_disk_.wait_hung(1);  // it writes step 7
  }
  ~MemoryTierTest() override {
    keeper_disk_.release_hung();
    release_stale_keeper(settings_);
    thread_.join();
  }
  [[nodiscard]] VersionName name() const { return {7, attempt_.number}; }
  [[nodiscard]] MemoryTier make(std::uint32_t world) { return make(world, *real_); }
  [[nodiscard]] MemoryTier make(std::uint32_t world, FileSystem& disk) {
    Options options;
    options.path = root_;
    options.world = world;
    options.slab_bytes = kSmallShape.slab_bytes;
    options.keeper = "/nonexistent/slackwater";
    options.stall_timeout = std::chrono::milliseconds(1);
    return MemoryTier(options, disk, clock_, Log([](LogLevel, std::string_view) {}));
  }
  [[nodiscard]] std::size_t kept_count() const {
    const auto peeked = peek_at_keeper(settings_);
    if (!peeked || !*peeked) return 0;
    return Region::open((*peeked)->memory).value().kept().size();
  }

  const TempDir directory_;
  const std::string root_ = directory_ / "run";
  const SystemClock clock_;
  const std::unique_ptr<FileSystem> real_ = make_posix_file_system();
  FaultFileSystem keeper_disk_{*real_};
  const KeeperSettings settings_{
      .directory = root_, .program = "/nonexistent/slackwater", .answer_within = std::chrono::seconds(60)};
  Attempt attempt_;
  std::unique_ptr<KeeperServer> server_;
  std::thread thread_;
};

TEST_F(MemoryTierTest, ARunWithAnotherNumberOfRanksLetsTheKeeperWriteWhatOnlyItHas) {
  MemoryTier tier = make(2);
  tier.attach();
  EXPECT_FALSE(tier.can_prepare(4));
  EXPECT_EQ(tier.memory_for(4), nullptr);
  EXPECT_EQ(kept_count(), 1u) << "the keeper still has it";
  keeper_disk_.release_hung();
  wait_for_flush(settings_, std::chrono::minutes(2));
  const auto manifest = read_manifest(*real_, root_, name());
  ASSERT_TRUE(manifest.has_value()) << manifest.error().to_string();
  EXPECT_EQ(manifest->decision, Decision::kCommit);
  // Now it may go. (There is no program here to start another one.)
  EXPECT_EQ(tier.memory_for(4), nullptr);
  EXPECT_EQ(kept_count(), 0u);
}

TEST_F(MemoryTierTest, MemoryIsNotMadeAgainWhileAStepIsOnlyThere) {
  MemoryTier tier = make(1);
  tier.attach();
  EXPECT_EQ(tier.attached_bytes(), 4u << 20);
  EXPECT_TRUE(tier.can_prepare(4));
  EXPECT_FALSE(tier.can_prepare(1)) << "four slabs are more than twice what is wanted";
  ASSERT_NE(tier.memory_for(1), nullptr);
  EXPECT_EQ(kept_count(), 1u);
}

TEST_F(MemoryTierTest, ACleanEndReleasesNoMemoryThatHasTheOnlyCopyOfAStep) {
  {
    MemoryTier tier = make(1);
    tier.attach();
    EXPECT_TRUE(tier.close(true).has_value());
  }
  EXPECT_EQ(kept_count(), 1u);
  keeper_disk_.release_hung();
  wait_for_flush(settings_, std::chrono::minutes(2));
  EXPECT_TRUE(read_manifest(*real_, root_, name()).has_value()) << "the keeper writes it";
  MemoryTier tier = make(1);
  tier.attach();
  EXPECT_TRUE(tier.close(true).has_value());
  EXPECT_EQ(kept_count(), 0u);
}

TEST_F(MemoryTierTest, AVersionWhoseManifestCannotBeReadIsAdopted) {
  FaultFileSystem disk(*real_);
  disk.fail(FsCall::kWriteAt, EIO, {.times = kAlways});  // the restored step is not written here, but by the test
  MemoryTier tier = make(1, disk);
  tier.attach();
  ASSERT_EQ(tier.versions(scan_catalog(*real_, root_).value()).size(), 1u);
  tier.note_restored(name());
  static_cast<void>(tier.begin_attempt(1, ""));
  disk.clear_faults();

  using Versions = std::vector<VersionName>;
  const auto adopted = [&](Versions versions) {
    tier.settle_adopted(versions);
    return versions;
  };
  const std::string path = version_path(root_, name()) + "/" + kManifestName;
  EXPECT_EQ(adopted({name()}), Versions()) << "there is no manifest";
  SharedRegion region;
  std::ofstream(path) << stage(region.trainer, name(), attempt_.run).manifest;
  EXPECT_EQ(adopted({}), Versions{name()}) << "it was committed";
  disk.fail(FsCall::kOpen, EIO, {.times = kAlways, .path = kManifestName});
  EXPECT_EQ(adopted({name()}), Versions{name()}) << "it may have been committed";
  EXPECT_EQ(adopted({}), Versions{name()});
  disk.clear_faults();
  std::ofstream(path) << serialize(Manifest{.run = attempt_.run,
                                            .step = name().step,
                                            .attempt = name().attempt,
                                            .decision = Decision::kAbort,
                                            .reason = "given up"});
  EXPECT_EQ(adopted({name()}), Versions()) << "it was aborted";
}

TEST_F(MemoryTierTest, ARestoredStepWhoseDecisionCannotBeReadIsNotReleased) {
  FaultFileSystem disk(*real_);
  MemoryTier tier = make(1, disk);
  tier.attach();
  ASSERT_EQ(tier.versions(scan_catalog(*real_, root_).value()).size(), 1u);
  disk.fail(FsCall::kOpen, EIO, {.times = kAlways, .path = version_directory(name())});
  tier.note_restored(name());
  EXPECT_TRUE(tier.flush().wait({}));
  const Status closed = tier.close(true);
  ASSERT_FALSE(closed.has_value());
  EXPECT_NE(closed.error().message.find("step 7 is only in memory"), std::string::npos) << closed.error().message;
  EXPECT_EQ(kept_count(), 1u);
}

TEST_F(MemoryTierTest, ARestoredStepIsWrittenByOneFlushAfterTheOther) {
  FaultFileSystem disk(*real_);
  MemoryTier tier = make(1, disk);
  tier.attach();
  const auto restore = [&] {
    ASSERT_EQ(tier.versions(scan_catalog(*real_, root_).value()).size(), 1u);
    tier.note_restored(name());
  };
  disk.hang(FsCall::kUnlink);
  restore();
  disk.wait_hung(1);
  restore();  // gives the first one up, which may still remove what the second writes
  EXPECT_FALSE(tier.flush().wait(std::chrono::steady_clock::now() + std::chrono::milliseconds(20)));
  EXPECT_EQ(disk.count(FsCall::kUnlink), 1u);
  disk.release_hung();
  EXPECT_TRUE(tier.flush().wait({}));
  EXPECT_TRUE(read_manifest(*real_, root_, name()).has_value());
  EXPECT_EQ(real_->list_files(version_path(root_, name()))->size(), 4u);
  EXPECT_TRUE(tier.close(true).has_value());
}

class MemoryTierOfHungKeeperTest : public MemoryTierTest {
 protected:
  MemoryTierOfHungKeeperTest() : MemoryTierTest(FsCall::kUnlink) {}
};

TEST_F(MemoryTierOfHungKeeperTest, AStepIsLeftToTheKeeperWhoseWriteOfItHangs) {
  {
    MemoryTier tier = make(1);
    tier.attach();
    ASSERT_EQ(tier.versions(scan_catalog(*real_, root_).value()).size(), 1u);
    tier.note_restored(name());
    EXPECT_TRUE(tier.flush().wait({}));
    const Status closed = tier.close(true);
    ASSERT_FALSE(closed.has_value());
    EXPECT_NE(closed.error().message.find("hangs"), std::string::npos) << closed.error().message;
  }
  EXPECT_TRUE(real_->list_files(version_path(root_, name()))->empty());
  keeper_disk_.release_hung();
  wait_for_flush(settings_, std::chrono::minutes(2));
  EXPECT_TRUE(read_manifest(*real_, root_, name()).has_value());
  EXPECT_EQ(real_->list_files(version_path(root_, name()))->size(), 4u);
}

TEST(MemoryTierPool, ARestartGetsAsMuchAsTheTrainerBeforeIt) {
  constexpr std::uint64_t kAvailable = 1000;  // slabs, before the first start
  const std::uint64_t first = slabs_in_half(10'000, kAvailable, 0);
  EXPECT_EQ(first, 500u);
  constexpr std::uint64_t kGrown = 20;  // what else needs memory now
  const std::uint64_t second = slabs_in_half(10'000, kAvailable - first - kGrown, first);
  EXPECT_LE(second, first);
  EXPECT_GE(second, first - kGrown);
  EXPECT_LE(first, 2 * second) << "the memory is used as it is";
  // Memory that is attached and was never touched is counted twice. It must not make the pool grow.
  EXPECT_EQ(slabs_in_half(10'000, kAvailable, 500), 500u);
  EXPECT_EQ(slabs_in_half(30, kAvailable, 500), 30u);
}

}  // namespace
}  // namespace slackwater::test
