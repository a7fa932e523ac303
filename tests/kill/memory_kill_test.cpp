// SIGKILL with a memory tier: the next start goes on from the last step that was reported as staged, bit for bit,
// whether or not it ever came to disk. Each test has its own directory, and so its own keepers. They end with the test.
#include <signal.h>
#include <sys/stat.h>

#include <chrono>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "kill/trainer_process.hpp"
#include "slackwater/checkpoint.hpp"
#include "support/effort.hpp"
#include "support/tally.hpp"
#include "support/temp_dir.hpp"
#include "version/names.hpp"
#include "version/version_store.hpp"

namespace slackwater::test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::minutes kMemoryTimeLimit{2};

class MemoryKillTest : public ::testing::Test {
 protected:
  MemoryKillTest() {
    ::setenv("SLACKWATER_TRAINER_KEEPER", KEEPER_PROGRAM, 1);
    disk("");
  }
  ~MemoryKillTest() override {
    ::unsetenv("SLACKWATER_TRAINER_KEEPER");
    ::unsetenv("SLACKWATER_TRAINER_POOL_MIB");
    disk("");
    for (const pid_t keeper : keepers()) ::kill(keeper, SIGKILL);
  }

  static void disk(const char* kind) { ::setenv("SLACKWATER_TRAINER_DISK", kind, 1); }
  [[nodiscard]] std::string run() const { return directory_ / "run"; }

  // The processes whose command line names this test's directory as a keeper's.
  [[nodiscard]] std::vector<pid_t> keepers() const {
    std::vector<pid_t> found;
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      const std::string name = entry.path().filename();
      if (name.find_first_not_of("0123456789") != std::string::npos) continue;
      std::ifstream file(entry.path() / "cmdline");
      std::stringstream words;
      words << file.rdbuf();
      const std::string text = words.str();
      if (text.find(std::string("keeper") + '\0' + run() + '\0') != std::string::npos)
        found.push_back(static_cast<pid_t>(std::stol(name)));
    }
    return found;
  }
  // The keeper's memories that this process has open or mapped: which, and how much of it exists.
  [[nodiscard]] static std::map<ino_t, std::uint64_t> memories_of(pid_t process) {
    std::map<ino_t, std::uint64_t> found;
    const std::string proc = "/proc/" + std::to_string(process);
    for (const char* list : {"/fd", "/map_files"}) {
      std::error_code gone;
      for (const auto& entry : std::filesystem::directory_iterator(proc + list, gone)) {
        const std::string target = std::filesystem::read_symlink(entry.path(), gone);
        struct stat info{};
        if (target.find("memfd:slackwater") != std::string::npos && ::stat(entry.path().c_str(), &info) == 0)
          found[info.st_ino] = static_cast<std::uint64_t>(info.st_blocks) * 512;
      }
    }
    return found;
  }
  void wait_for_no_keeper() const {
    const auto deadline = Clock::now() + kMemoryTimeLimit;
    while (!keepers().empty() && Clock::now() < deadline) std::this_thread::yield();
    EXPECT_TRUE(keepers().empty());
  }
  [[nodiscard]] std::string keeper_log() const {
    std::ifstream file(run() + "/.slackwater/keeper-00000.log");
    std::stringstream words;
    words << file.rdbuf();
    return words.str();
  }
  void wait_for_log(const std::string& words) const {
    const auto deadline = Clock::now() + kMemoryTimeLimit;
    while (keeper_log().find(words) == std::string::npos && Clock::now() < deadline) std::this_thread::yield();
    EXPECT_NE(keeper_log().find(words), std::string::npos) << keeper_log();
  }

  // Trains until some step is staged, kills it, and returns the last one that it said is.
  [[nodiscard]] std::uint64_t kill_after_staged(std::chrono::microseconds more = {}) {
    Trainer trainer(run(), 8, 1'000'000, "staged");
    trainer.listen(Clock::now() + kMemoryTimeLimit, "staged");
    if (more.count() > 0) trainer.listen(Clock::now() + more);
    EXPECT_EQ(trainer.end(), 128 + SIGKILL);
    return trainer.last("staged").value_or(0);
  }
  // Kills a trainer of one step, which is staged and cannot come to disk: nobody can write its index.
  void kill_with_an_unwritten_step() {
    disk("stuck");
    Trainer trainer(run(), 8, 1, "staged");
    trainer.listen(Clock::now() + kMemoryTimeLimit, "staged 1");
    std::filesystem::create_directory(in_the_way());
    EXPECT_EQ(trainer.end(), 128 + SIGKILL);
    disk("");
    wait_for_log("step 1 could not be written");
  }
  [[nodiscard]] std::string in_the_way() const { return version_path(run(), {1, 1}) + "/index"; }
  // A start that has no steps left to train. Returns its exit code, and checks where it went on.
  [[nodiscard]] int end_at_once(std::uint64_t goes_on_from) {
    Trainer trainer(run(), 8, 0, "staged");
    trainer.listen(Clock::now() + kMemoryTimeLimit);
    EXPECT_EQ(trainer.last("restored"), goes_on_from);
    return trainer.end();
  }
  void expect_on_disk(std::uint64_t step) const {
    const auto versions = list_versions(run());
    ASSERT_TRUE(versions.has_value());
    ASSERT_FALSE(versions->empty()) << keeper_log();
    EXPECT_EQ(versions->back().step, step);
    auto checkpoint = Checkpoint::open(run());
    ASSERT_TRUE(checkpoint.has_value());
    const auto report = checkpoint->verify();
    ASSERT_TRUE(report.has_value());
    EXPECT_TRUE(report->damages.empty());
  }

  // Where a new start goes on; it then trains for one step and ends.
  [[nodiscard]] std::uint64_t restart() {
    Trainer trainer(run(), 8, 1, "staged");
    trainer.listen(Clock::now() + kMemoryTimeLimit, "done");
    EXPECT_TRUE(trainer.last("done").has_value());
    return trainer.last("restored").value_or(0);
  }

  const TempDir directory_;
};

TEST_F(MemoryKillTest, ARestartGoesOnFromTheLastStagedStepAlthoughNoByteEverCameToDisk) {
  disk("stuck");
  const std::uint64_t staged = kill_after_staged(std::chrono::milliseconds(300));
  ASSERT_GT(staged, 0u);
  disk("");
  EXPECT_EQ(restart(), staged);
  wait_for_no_keeper();  // the clean end released the memory
}

TEST_F(MemoryKillTest, KillsAtRandomMomentsNeverGoBackBehindAStagedStep) {
  std::mt19937_64 random(harness_seed());
  const std::uint64_t kills = effort("SLACKWATER_MEMORY_KILLS", 10);
  std::uint64_t floor = 0;
  for (std::uint64_t round = 0; round < kills; ++round) {
    Trainer trainer(run(), 8, 1'000'000, "staged");
    trainer.listen(Clock::now() + kMemoryTimeLimit, round % 2 == 0 ? "staged" : "restored");
    trainer.listen(Clock::now() + std::chrono::microseconds(random() % (200'000u >> (round % 5))));
    EXPECT_EQ(trainer.end(), 128 + SIGKILL) << "round " << round;
    ASSERT_TRUE(trainer.last("restored").has_value());
    EXPECT_GE(*trainer.last("restored"), floor) << "round " << round << "\n" << keeper_log();
    floor = std::max(floor, trainer.last("staged").value_or(floor));
  }
  EXPECT_GE(restart(), floor) << keeper_log();
  report_tally("kills with a memory tier", kills, HasFailure() ? 1 : 0);
}

TEST_F(MemoryKillTest, TheKeeperCommitsWhatWasStagedAndNotFlushed) {
  disk("stuck");
  const std::uint64_t staged = kill_after_staged();
  wait_for_log("is committed");
  const auto versions = list_versions(run());
  ASSERT_TRUE(versions.has_value());
  ASSERT_FALSE(versions->empty());
  EXPECT_GE(versions->back().step, staged);
  auto checkpoint = Checkpoint::open(run());
  ASSERT_TRUE(checkpoint.has_value());
  const auto report = checkpoint->verify();
  ASSERT_TRUE(report.has_value());
  EXPECT_TRUE(report->damages.empty());
}

TEST_F(MemoryKillTest, WithTheKeeperKilledTooARestartReadsFromDisk) {
  std::uint64_t committed = 0;
  {
    Trainer trainer(run(), 8, 1'000'000, "staged");
    trainer.listen(Clock::now() + kMemoryTimeLimit, "committed");
    EXPECT_EQ(trainer.end(), 128 + SIGKILL);
    committed = trainer.last("committed").value_or(0);
  }
  ASSERT_GT(committed, 0u);
  for (const pid_t keeper : keepers()) ::kill(keeper, SIGKILL);
  wait_for_no_keeper();
  const auto versions = list_versions(run());
  ASSERT_TRUE(versions.has_value());
  ASSERT_FALSE(versions->empty());
  EXPECT_GE(versions->back().step, committed);
  EXPECT_EQ(restart(), versions->back().step);
}

TEST_F(MemoryKillTest, ARestartWithoutAMemoryTierEndsTheKeeperAndUsesWhatIsOnDisk) {
  static_cast<void>(kill_after_staged(std::chrono::milliseconds(100)));
  ::setenv("SLACKWATER_TRAINER_KEEPER", "", 1);
  static_cast<void>(restart());
  wait_for_no_keeper();
}

TEST_F(MemoryKillTest, AStepOfAnOlderRunIsNotRestoredFromMemory) {
  disk("stuck");
  static_cast<void>(kill_after_staged());
  wait_for_log("is committed");
  disk("");
  {
    // Another run that went on from nothing, and was not on this machine.
    const auto fs = make_posix_file_system();
    const SystemClock clock;
    auto other = VersionStore::open(*fs, clock, run(), Log(), VersionStore::Role::kMember);
    ASSERT_TRUE(other.has_value());
    ASSERT_TRUE((*other)->attempt().claim("other", {}).has_value());
  }
  EXPECT_EQ(restart(), 0u);
}

TEST_F(MemoryKillTest, TwoRanksGoOnFromTheirKeepersWithTheSameStagedStep) {
  for (const char* tensors : {"local", "global"}) {
    SCOPED_TRACE(tensors);
    std::filesystem::remove_all(run());
    std::uint64_t staged[2] = {};
    {
      disk("stuck");
      std::deque<Trainer> ranks;
      for (std::uint32_t rank = 0; rank < 2; ++rank)
        ranks.emplace_back(run(), 4, 1'000'000, "staged", rank, 2, tensors);
      for (Trainer& rank : ranks) rank.listen(Clock::now() + kMemoryTimeLimit, "staged 2");
      for (Trainer& rank : ranks) EXPECT_EQ(rank.end(), 128 + SIGKILL);
      for (std::uint32_t rank = 0; rank < 2; ++rank) staged[rank] = ranks[rank].last("staged").value_or(0);
    }
    ASSERT_EQ(staged[0], staged[1]);
    disk("");
    std::deque<Trainer> ranks;
    for (std::uint32_t rank = 0; rank < 2; ++rank) ranks.emplace_back(run(), 4, 1, "staged", rank, 2, tensors);
    for (Trainer& rank : ranks) rank.listen(Clock::now() + kMemoryTimeLimit, "done");
    for (const Trainer& rank : ranks) EXPECT_EQ(rank.last("restored").value_or(0), staged[0]);
    ranks.clear();
    wait_for_no_keeper();
  }
}

TEST_F(MemoryKillTest, AStepThatWasOnlyInMemoryIsOnDiskOnceARestartEndsWithoutTraining) {
  kill_with_an_unwritten_step();
  std::filesystem::remove(in_the_way());
  EXPECT_EQ(end_at_once(1), 0);
  expect_on_disk(1);
  wait_for_no_keeper();
}

TEST_F(MemoryKillTest, AStepThatStillCannotBeWrittenStaysInMemoryAndCloseSaysSo) {
  kill_with_an_unwritten_step();
  EXPECT_NE(end_at_once(1), 0);
  EXPECT_FALSE(keepers().empty());
  std::filesystem::remove(in_the_way());
  EXPECT_EQ(end_at_once(1), 0);
  expect_on_disk(1);
  wait_for_no_keeper();
}

TEST_F(MemoryKillTest, ARestartWithASmallerPoolLosesNoStepThatIsOnlyInMemory) {
  ::setenv("SLACKWATER_TRAINER_POOL_MIB", "32", 1);
  kill_with_an_unwritten_step();
  ::setenv("SLACKWATER_TRAINER_POOL_MIB", "10", 1);
  {
    Trainer trainer(run(), 8, 1'000'000, "staged");
    trainer.listen(Clock::now() + kMemoryTimeLimit, "restored");
    EXPECT_EQ(trainer.end(), 128 + SIGKILL);
    EXPECT_EQ(trainer.last("restored"), 1u);
  }
  std::filesystem::remove(in_the_way());
  EXPECT_GE(restart(), 1u);
}

TEST_F(MemoryKillTest, TwoRanksCommitTheStepThatTheyRestoredFromMemory) {
  for (const char* tensors : {"local", "global"}) {
    SCOPED_TRACE(tensors);
    std::filesystem::remove_all(run());
    const auto train = [&](std::uint64_t steps, const char* until) {
      std::deque<Trainer> ranks;
      for (std::uint32_t rank = 0; rank < 2; ++rank) ranks.emplace_back(run(), 4, steps, "staged", rank, 2, tensors);
      for (Trainer& rank : ranks) rank.listen(Clock::now() + kMemoryTimeLimit, until);
      return std::pair(ranks[0].last("restored"), ranks[1].last("restored"));
    };
    disk("stuck");
    static_cast<void>(train(1, "staged 1"));  // and killed
    disk("");
    EXPECT_EQ(train(0, "done"), std::pair(std::optional<std::uint64_t>(1), std::optional<std::uint64_t>(1)));
    expect_on_disk(1);
    wait_for_no_keeper();
  }
}

TEST_F(MemoryKillTest, TheMemoryIsBoundedOverVersionsAndRestartsAndThenReleased) {
  constexpr std::uint64_t kTablesBytes = 4u << 20;  // header, texts
  for (const std::uint64_t pool_mib : {32, 12, 12, 32}) {
    ::setenv("SLACKWATER_TRAINER_POOL_MIB", std::to_string(pool_mib).c_str(), 1);
    Trainer trainer(run(), 8, 1'000'000, "staged");
    trainer.listen(Clock::now() + kMemoryTimeLimit, "restored ");
    trainer.listen(Clock::now() + kMemoryTimeLimit, "staged ");
    const std::uint64_t first = trainer.last("staged").value_or(0);
    trainer.listen(Clock::now() + kMemoryTimeLimit, "staged " + std::to_string(first + 4));
    EXPECT_EQ(memories_of(trainer.process()).size(), 1u);
    ASSERT_EQ(keepers().size(), 1u);
    const auto held = memories_of(keepers()[0]);
    EXPECT_EQ(held.size(), 1u);
    std::uint64_t bytes = 0;
    for (const auto& [number, size] : held) bytes += size;
    EXPECT_LE(bytes, (pool_mib << 20) + kTablesBytes) << "pool of " << pool_mib << " MiB";
    EXPECT_EQ(trainer.end(), 128 + SIGKILL);
  }
  EXPECT_GT(restart(), 0u);
  wait_for_no_keeper();
}

}  // namespace
}  // namespace slackwater::test
