// A checkpoint that some ranks do not see is not damaged, and must not be lost: all look again, and if that does not
// help the restore fails and nothing changes.
#include <fmt/format.h>

#include "fault/ranks_fixture.hpp"
#include "support/hiding_file_system.hpp"
#include "support/pause_clock.hpp"

namespace slackwater::test {
namespace {

// One rank whose host may not see everything.
struct BlindRank {
  explicit BlindRank(Options options) : number(options.rank) {
    options.keep = 0;
    options.log = [this](LogLevel level, std::string_view line) {
      const std::lock_guard lock(mutex);
      if (level >= LogLevel::kWarning) log += fmt::format("{}\n", line);
      if (line.find("list the directory again") != std::string_view::npos && ++looks_again == sees_again)
        fs->show_all();
    };
    auto hiding = std::make_unique<HidingFileSystem>(*real);
    fs = hiding.get();
    // Rank 0 pauses before all look again. The pauses are parts of the time-out.
    auto clock =
        std::make_unique<PauseClock>([hidden = fs] { return hidden->calls(); }, Duration(options.commit_timeout) / 64);
    auto opened = open_engine(std::move(options), {.fs = std::move(hiding), .clock = std::move(clock)});
    if (!opened) throw std::runtime_error(opened.error().to_string());
    engine = std::make_unique<Engine>(std::move(*opened));
  }
  [[nodiscard]] std::string logged() {
    const std::lock_guard lock(mutex);
    return log;
  }

  const std::uint32_t number;
  std::unique_ptr<FileSystem> real = make_posix_file_system();
  std::mutex mutex;
  std::string log;      // guarded by mutex, as all below
  int looks_again = 0;  // of all ranks, so far
  int sees_again = -1;  // from this one on
  PatternState state{{{"w", 10'000}}};
  HidingFileSystem* fs = nullptr;  // owned by the engine
  std::unique_ptr<Engine> engine;
};

class RanksUnseenVersionTest : public ::testing::Test {
 protected:
  using Outcome = Result<std::optional<Restored>>;

  void SetUp() override {
    start();
    for (const std::uint64_t step : {1u, 2u, 3u}) commit_all(step);
    start();
  }
  void start() {
    ranks_.clear();
    for (std::uint32_t rank = 0; rank < kWorld; ++rank)
      ranks_.push_back(std::make_unique<BlindRank>(rank_options(directory_ / "run", rank)));
  }
  void commit_all(std::uint64_t step) {
    std::vector<Snapshot> snapshots;
    for (const auto& rank : ranks_) {
      rank->state.fill(step * kWorld + rank->number);
      auto saved = rank->engine->save(step, rank->state.state());
      ASSERT_TRUE(saved) << saved.error().to_string();
      snapshots.push_back(std::move(**saved));
    }
    for (Snapshot& snapshot : snapshots) {
      const Status status = snapshot.wait(Level::kCommitted, kRealTimeLimit);
      ASSERT_TRUE(status) << status.error().to_string();
    }
  }
  [[nodiscard]] std::vector<Outcome> restore(std::optional<std::uint64_t> step = {}) {
    std::vector<Outcome> outcomes(kWorld, std::optional<Restored>());
    std::vector<std::jthread> threads;
    for (std::uint32_t rank = 0; rank < kWorld; ++rank) {
      threads.emplace_back(
          [&, rank] { outcomes[rank] = ranks_[rank]->engine->restore({.step = step}, ranks_[rank]->state.plan()); });
    }
    threads.clear();
    return outcomes;
  }
  void expect_restored(const std::vector<Outcome>& outcomes, std::uint64_t step) {
    for (std::uint32_t rank = 0; rank < kWorld; ++rank) {
      ASSERT_TRUE(outcomes[rank]) << "rank " << rank << ": " << outcomes[rank].error().to_string();
      ASSERT_TRUE(*outcomes[rank]);
      EXPECT_EQ((*outcomes[rank])->version.step, step);
      EXPECT_TRUE((*outcomes[rank])->damaged.empty());
      EXPECT_EQ(ranks_[rank]->state.number(), step * kWorld + rank);
      EXPECT_EQ(ranks_[rank]->state.difference(), std::nullopt);
    }
  }
  [[nodiscard]] std::vector<std::uint64_t> steps() const {
    std::vector<std::uint64_t> steps;
    const auto versions = list_versions(directory_ / "run");
    for (const VersionInfo& version : versions.value()) steps.push_back(version.step);
    return steps;
  }

  TempDir directory_{TempDir::in_memory()};
  std::vector<std::unique_ptr<BlindRank>> ranks_;
};

using Steps = std::vector<std::uint64_t>;

TEST_F(RanksUnseenVersionTest, ThatComesIntoViewLaterIsRestored) {
  ranks_[2]->fs->hide("/step-0000000003");
  ranks_[2]->sees_again = 2;
  expect_restored(restore(), 3);
  for (const auto& rank : ranks_) EXPECT_EQ(rank->looks_again, 2);
  commit_all(4);
  EXPECT_EQ(steps(), (Steps{1, 2, 3, 4}));
}

TEST_F(RanksUnseenVersionTest, ThatStaysOutOfViewFailsTheRestoreOnAllRanksAndIsKept) {
  for (const std::vector<std::uint32_t>& blind : {std::vector{2u}, {0u}, {1u, 2u, 3u}}) {
    for (const std::uint32_t rank : blind) ranks_[rank]->fs->hide("/step-0000000003");
    const std::string words =
        fmt::format("step 3: only {} of 4 ranks see it, {} not", kWorld - blind.size(),
                    blind.size() == 1 ? fmt::format("rank {} does", blind[0]) : "ranks 1 to 3 do");
    for (const Outcome& outcome : restore()) {
      ASSERT_FALSE(outcome);
      EXPECT_EQ(outcome.error().kind, ErrorKind::kMismatch);
      EXPECT_TRUE(outcome.error().retryable);
      EXPECT_NE(outcome.error().message.find(words), std::string::npos) << outcome.error().message;
      EXPECT_NE(outcome.error().message.find("check that all ranks see the same directory"), std::string::npos);
    }
    for (const std::uint32_t rank : blind) ranks_[rank]->fs->show_all();
  }
  EXPECT_EQ(steps(), (Steps{1, 2, 3}));
  expect_restored(restore(), 3);
  commit_all(4);
  EXPECT_EQ(steps(), (Steps{1, 2, 3, 4}));
}

TEST_F(RanksUnseenVersionTest, ThatIsOlderThanTheNewestIsNoObstacle) {
  ranks_[1]->fs->hide("/step-0000000001");
  expect_restored(restore(), 3);
  EXPECT_EQ(ranks_[0]->looks_again, 0);
  EXPECT_NE(ranks_[0]->logged().find("step 1: only 3 of 4 ranks see it, rank 1 does not"), std::string::npos)
      << ranks_[0]->logged();
}

TEST_F(RanksUnseenVersionTest, ThatOnlyRankZeroDoesNotSeeGoesOnCounting) {
  ranks_[0]->fs->hide("/step-0000000001");
  expect_restored(restore(), 3);
  ranks_[0]->fs->show_all();
  commit_all(4);
  ASSERT_TRUE(ranks_[0]->engine->wait(Level::kCommitted));  // what does not count any more is removed
  EXPECT_EQ(steps(), (Steps{1, 2, 3, 4}));
}

TEST_F(RanksUnseenVersionTest, DoesNotKeepAnOlderOneFromBeingAskedForByItsNumber) {
  ranks_[2]->fs->hide("/step-0000000003");
  expect_restored(restore(2), 2);
}

}  // namespace
}  // namespace slackwater::test
