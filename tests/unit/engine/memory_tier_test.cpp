#include "engine/memory_tier.hpp"

#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "engine/pipeline_maker.hpp"
#include "keeper/keeper_client.hpp"
#include "keeper/keeper_server.hpp"
#include "support/effort.hpp"
#include "support/fault_file_system.hpp"
#include "support/temp_dir.hpp"
#include "unit/engine/engine_fixture.hpp"
#include "unit/engine/keeper_thread.hpp"
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

// As on a rank that is not rank 0.
TEST_F(MemoryTierTest, AKeeperLearnsThatAnotherRankHasCommittedTheRestoredStep) {
  FaultFileSystem disk(*real_);
  disk.fail(FsCall::kWriteAt, EIO, {.times = kAlways});
  MemoryTier tier = make(1, disk);
  tier.attach();
  ASSERT_EQ(tier.versions(scan_catalog(*real_, root_).value()).size(), 1u);
  tier.note_restored(name());
  static_cast<void>(tier.begin_attempt(1, ""));
  const auto state = [&] { return Region::open((*peek_at_keeper(settings_))->memory).value().kept().at(0).state; };
  std::vector<VersionName> adopted;
  tier.settle_adopted(adopted);
  EXPECT_EQ(state(), KeptState::kStaged);
  SharedRegion region;
  std::ofstream(version_path(root_, name()) + "/" + kManifestName)
      << stage(region.trainer, name(), attempt_.run).manifest;
  tier.settle_adopted(adopted);
  EXPECT_EQ(state(), KeptState::kCommitted);
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

// The trainer before takes its time to end, or the keeper did not answer for a moment.
TEST_F(MemoryTierTest, AKeeperThatIsReachedLateKeepsWhatItHolds) {
  MemoryTier tier = make(1);
  {
    const auto other = KeeperClient::attach(settings_).value().value();
    tier.attach();
    EXPECT_EQ(tier.attached_bytes(), 0u);
  }
  ASSERT_NE(tier.memory_for(4), nullptr);  // prepare() comes before restore()
  EXPECT_EQ(kept_count(), 1u);
  EXPECT_EQ(tier.versions(scan_catalog(*real_, root_).value()).size(), 1u);
}

TEST_F(MemoryTierTest, AKeeperOfOtherRanksThatIsReachedLateKeepsWhatItHolds) {
  MemoryTier tier = make(2);  // attach() saw nothing
  EXPECT_EQ(tier.memory_for(4), nullptr);
  EXPECT_EQ(kept_count(), 1u);
}

// A damaged version of step 7 was set aside, and the step was saved again.
TEST_F(MemoryTierTest, ADeletedVersionGoesAndAnotherOneOfItsStepStays) {
  MemoryTier tier = make(1);
  tier.attach();
  tier.drop({{name().step, name().attempt + 1}});
  EXPECT_EQ(kept_count(), 1u);
  tier.drop({name()});
  EXPECT_EQ(kept_count(), 0u);
}

TEST_F(MemoryTierTest, ARunWithoutAMemoryTierSaysWhichStepItGivesUp) {
  Options options;
  options.path = root_;
  options.stall_timeout = std::chrono::milliseconds(1);
  std::string said;
  end_earlier_keeper(options, *real_, Log([&](LogLevel, std::string_view text) { said += text; }));
  EXPECT_NE(said.find("step 7 was only in the memory of a keeper, and is given up"), std::string::npos) << said;
  EXPECT_EQ(kept_count(), 0u);
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

// It answers that it is writing a step, and its memory is laid out in another way.
TEST(KeeperOfAnotherRelease, IsLeftAloneWhileItWritesAStep) {
  const TempDir directory;
  const KeeperSettings settings{.directory = directory.path()};
  const UniqueFd listener = listen_at(keeper_address(directory.path(), 0).value()).value();
  std::atomic<bool> test_is_over = false;
  std::thread keeper([&] {
    const UniqueFd memory = make_shared_memory("test", 1u << 20).value();
    for (;;) {
      pollfd watched{.fd = listener.get(), .events = POLLIN, .revents = 0};
      ASSERT_EQ(::poll(&watched, 1, 120'000), 1);
      const UniqueFd socket(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
      const auto mail = receive_message(socket);
      ASSERT_TRUE(mail && *mail);
      if ((*mail)->message.kind != MessageKind::kPeek) {
        EXPECT_TRUE(test_is_over) << "attached to, or told to end";
        return;
      }
      ASSERT_TRUE(send_message(socket, {.kind = MessageKind::kMemory, .flushing = 1}, &memory));
    }
  });
  Options options;
  options.path = directory.path();
  options.keeper = "/nonexistent/slackwater";
  options.stall_timeout = std::chrono::milliseconds(1);
  const auto disk = make_posix_file_system();
  const SystemClock clock;
  MemoryTier tier(options, *disk, clock, Log([](LogLevel, std::string_view) {}));
  tier.attach();
  EXPECT_EQ(tier.memory_for(4), nullptr);
  test_is_over = true;
  release_stale_keeper(settings);
  keeper.join();
}

class EngineWithMemoryTest : public EngineTest {};

// Its bytes and its record are on disk. But nobody has decided, so a restart would not find it there.
TEST_F(EngineWithMemoryTest, AStepIsStagedOnceItIsInMemoryHoweverFarTheDiskIs) {
  const KeeperThread keeper(options().path);
  Engine engine = open(keeper.use(options()));
  Model model;
  model.add("w", 1000);
  State state = model.state();
  state.sealed_by_caller = true;
  auto saved = engine.save(7, std::move(state));
  ASSERT_TRUE(saved && *saved);
  Snapshot& snapshot = **saved;
  const std::string record = options().path + "/step-0000000007.a1/rank-00000.record";
  while (!std::filesystem::exists(record)) std::this_thread::yield();
  EXPECT_FALSE(snapshot.wait(Level::kStaged, std::chrono::milliseconds(100)));  // ended by its time-out
  snapshot.seal();
  EXPECT_TRUE(snapshot.wait(Level::kStaged, std::chrono::minutes(1)));
  EXPECT_TRUE(snapshot.wait(Level::kCommitted, std::chrono::minutes(1)));
  EXPECT_TRUE(engine.close());
}

// No more memory than now, and a little more, from the line on that is the last before the launch.
class TightMemory {
 public:
  TightMemory() { EXPECT_EQ(::getrlimit(RLIMIT_AS, &before_), 0); }
  ~TightMemory() { end(); }
  TightMemory(const TightMemory&) = delete;
  TightMemory& operator=(const TightMemory&) = delete;
  void begin() const {
    std::uint64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    rlimit tight = before_;
    tight.rlim_cur = pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)) + (32u << 20);
    ::setrlimit(RLIMIT_AS, &tight);
  }
  void end() const { ::setrlimit(RLIMIT_AS, &before_); }

 private:
  rlimit before_{};
};

TEST_F(EngineWithMemoryTest, AStepThatRunsOutOfMemoryAmidItsLaunchHoldsUpNoOther) {
  if (kSanitized) GTEST_SKIP() << "sanitizers end a process that runs out of memory";
  const KeeperThread keeper(options().path);
  Options options = keeper.use(this->options());
  options.pool_bytes = 160 * kMiB;
  const TightMemory tight;
  std::promise<void> saved;
  options.log = [&](LogLevel, std::string_view text) {
    if (text.starts_with("the pool has")) {
      saved.get_future().wait();  // what save() held is free by then
      tight.begin();
    }
    if (text.find("step 1 was not checkpointed") != std::string_view::npos) tight.end();
  };
  Engine engine = open(options);
  Model large;
  large.add(std::string(70 * kMiB, 'n'), 1000);  // the launch copies the name
  Snapshot snapshot = save(engine, 1, large);
  saved.set_value();
  const Status failed = snapshot.wait(Level::kCommitted, std::chrono::minutes(1));
  ASSERT_FALSE(failed);
  EXPECT_NE(failed.error().message.find("could not be planned"), std::string::npos) << failed.error().to_string();
  static_cast<void>(engine.wait(Level::kCommitted, std::chrono::minutes(1)));  // now the memory is there again
  Model model;
  model.add("w", 1000);
  const Status next = save(engine, 2, model).wait(Level::kCommitted, std::chrono::seconds(20));
  EXPECT_TRUE(next) << next.error().to_string();
  static_cast<void>(engine.close(std::chrono::seconds(10)));
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
