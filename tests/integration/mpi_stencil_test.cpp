// examples/mpi_stencil.cpp as people run it: four ranks, one of them killed at a random moment, started again on two.
#include <chrono>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "integration/mpi_run.hpp"
#include "slackwater/checkpoint.hpp"
#include "support/effort.hpp"
#include "support/temp_dir.hpp"

namespace slackwater::test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::minutes kTimeLimit{1};

// False: it did not happen in time.
bool happens(const std::function<bool()>& what) {
  for (const auto deadline = Clock::now() + kTimeLimit; Clock::now() < deadline;) {
    if (what()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return false;
}

std::uint64_t newest_step(const std::string& directory) {
  const auto versions = list_versions(directory);
  return versions && !versions->empty() ? versions->back().step : 0;
}

std::vector<std::string> stencil(const std::string& directory, std::uint64_t sweeps) {
  return {MPI_STENCIL, directory, std::to_string(sweeps)};
}

// The whole plate of one step, out of the files of all ranks.
std::vector<double> plate(const std::string& directory, std::uint64_t step, std::uint32_t world) {
  auto checkpoint = Checkpoint::open(directory, step);
  EXPECT_TRUE(checkpoint) << checkpoint.error().to_string();
  if (!checkpoint) return {};
  EXPECT_EQ(checkpoint->version().world, world);
  const TensorInfo* info = checkpoint->find("plate");
  EXPECT_NE(info, nullptr);
  if (info == nullptr) return {};
  std::vector<double> cells(static_cast<std::size_t>(info->shape[0] * info->shape[1]));
  const Target target{.name = "plate", .dtype = DType::kF64, .shape = info->shape, .data = cells.data()};
  const Status read = checkpoint->read({&target, 1});
  EXPECT_TRUE(read) << read.error().to_string();
  return cells;
}

TEST(MpiStencil, KilledOnFourRanksAndRestartedOnTwoItEndsWithTheSamePlateToTheLastBit) {
  const TempDir directory(TempDir::in_memory());
  const std::string run = directory / "run";
  std::mt19937_64 random(harness_seed());
  const std::uint64_t kills = effort("SLACKWATER_MPI_KILLS", 2);
  for (std::uint64_t round = 0; round < kills; ++round) {
    const std::uint64_t before = newest_step(run);
    MpiRun trainer(4, stencil(run, 1'000'000));
    ASSERT_TRUE(happens([&] { return newest_step(run) > before + random() % 8; })) << "nothing was committed";
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 20'000));  // any moment
    const std::vector<pid_t> ranks = trainer.ranks();
    ASSERT_EQ(ranks.size(), 4u);
    ASSERT_EQ(::kill(ranks[random() % ranks.size()], SIGKILL), 0);
    EXPECT_NE(trainer.wait(), 0);
    for (const pid_t rank : ranks) EXPECT_TRUE(happens([&] { return ::kill(rank, 0) != 0; })) << "a rank lives on";
    EXPECT_GT(newest_step(run), before);
  }

  const std::uint64_t killed_at = newest_step(run);
  const std::uint64_t sweeps = killed_at + 5;
  EXPECT_EQ(MpiRun(2, stencil(run, sweeps)).wait(), 0);
  EXPECT_EQ(MpiRun(3, stencil(directory / "undisturbed", sweeps)).wait(), 0);
  const std::vector<double> expected = plate(directory / "undisturbed", sweeps, 3);
  ASSERT_FALSE(expected.empty());
  EXPECT_TRUE(plate(run, sweeps, 2) == expected);
  fmt::print("{} kills of one of 4 ranks, seed {}: {} sweeps, the last 5 on 2 ranks\n", kills, harness_seed(), sweeps);
}

}  // namespace
}  // namespace slackwater::test
