// `slackwater_bench lazy`: its short form from outside, and the parts its figures rest on.
#include <dlfcn.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "bench/lazy/paper.hpp"
#include "bench/lazy/rated_files.hpp"
#include "bench/lazy/trainer.hpp"
#include "support/temp_dir.hpp"
#include "support/write_checkpoint.hpp"

namespace slackwater::bench {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr std::uint64_t kMiB = 1u << 20;

struct Outcome {
  int code = -1;
  std::string out;
  std::string err;
};

class BenchLazyTest : public testing::Test {
 protected:
  Outcome run(const std::string& arguments) const {
    const std::string command = std::string(SLACKWATER_BENCH_BINARY) + " lazy " + arguments + " >" +
                                (directory_ / "stdout") + " 2>" + (directory_ / "stderr");
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, test::read_file_text(directory_ / "stdout"),
            test::read_file_text(directory_ / "stderr")};
  }
  test::TempDir directory_;
};

TEST_F(BenchLazyTest, LaysEveryStrategyBesideThePaperAndReadsTheEnginesCheckpointsBack) {
  const std::string file = directory_ / "figures.json";
  const Outcome outcome = run("--quick --only a --only c --simulator " SW_SIM_CUDA_LIBRARY " --dir " +
                              directory_.path() + " --json " + file);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("model of TorchSnapshot"));
  EXPECT_THAT(outcome.out, HasSubstr("paper"));
  EXPECT_THAT(outcome.out, HasSubstr("every byte is right"));

  const json figures = json::parse(test::read_file_text(file));
  std::set<std::string> strategies;
  for (const json& row : figures["blocked"]) {
    strategies.insert(row["strategy"]);
    EXPECT_EQ(row["blocked_samples_s"].size(), 5u);
    EXPECT_GE(row["checkpoints_compared"], 1);
    EXPECT_EQ(row["device_fences"] > 0, row["strategy"] == "lazy_device_fence");
    EXPECT_EQ(row["committed_after_s"] > 0,
              row["strategy"] == "lazy_device_fence" || row["strategy"] == "lazy_host_fence");
  }
  EXPECT_THAT(strategies,
              testing::ElementsAre("blocking", "chunked", "copy_then_flush", "lazy_device_fence", "lazy_host_fence"));
  EXPECT_EQ(figures["pool"].size(), 6u);
  EXPECT_TRUE(figures["train"].empty());
  EXPECT_EQ(figures["spin"]["spinning_waits"], 0);
  EXPECT_FALSE(figures["verdicts"].empty());
}

TEST_F(BenchLazyTest, SaysInOneSentenceThatTheSimulatorIsMissing) {
  const Outcome outcome = run("--quick --simulator " + (directory_ / "nowhere.so"));
  EXPECT_EQ(outcome.code, 2);
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err, HasSubstr("the simulated CUDA driver was not found"));
  EXPECT_THAT(outcome.err, HasSubstr("--simulator"));
  EXPECT_EQ(std::ranges::count(outcome.err, '\n'), 1);
}

TEST_F(BenchLazyTest, RefusesALibraryThatIsNotTheSimulator) {
  Dl_info library{};
  ASSERT_NE(dladdr(dlsym(RTLD_DEFAULT, "gnu_get_libc_version"), &library), 0);
  const Outcome outcome = run(std::string("--quick --simulator ") + library.dli_fname);
  EXPECT_EQ(outcome.code, 2);
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err, HasSubstr("not the simulated CUDA driver"));
}

TEST_F(BenchLazyTest, RefusesAPartThatDoesNotExist) {
  const Outcome outcome = run("--only d");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("hint:"));
}

TEST(TrainerTest, TellsTheStateOfBeforeAnUpdateFromTheStateAfterIt) {
  const auto gpus = SimulatedGpu::load(SW_SIM_CUDA_LIBRARY, 2);
  ASSERT_TRUE(gpus.has_value()) << gpus.error().to_string();
  const SimulatedGpu& gpu = *gpus->back();
  const cuda::Scope scope(gpu.context());
  const auto trainer = Trainer::create(gpu, kMiB);
  ASSERT_TRUE(trainer.has_value()) << trainer.error().to_string();
  const std::span<const std::byte> block(gpu.alias((*trainer)->block()), (*trainer)->block_bytes());
  EXPECT_TRUE((*trainer)->compare(block, 0, 0));
  EXPECT_FALSE((*trainer)->compare(block, 0, 1));

  ASSERT_TRUE((*trainer)->queue_compute(std::chrono::nanoseconds(1000)));
  ASSERT_TRUE((*trainer)->queue_update(std::chrono::nanoseconds(1000)));
  ASSERT_TRUE((*trainer)->wait_for_update());
  EXPECT_EQ((*trainer)->stream().device, 1);
  EXPECT_EQ((*trainer)->version(), 1u);
  EXPECT_FALSE((*trainer)->compare(block, 0, 0));
  EXPECT_TRUE((*trainer)->compare(block, 0, 1));
  EXPECT_GE((*trainer)->update_held_seconds(), 0);
}

TEST(RatedFilesTest, HoldsWritesBackUntilTheBandwidthHasCarriedThem) {
  const test::TempDir directory;
  const auto fs = rated_file_system(make_posix_file_system(), 40.0 * kMiB);
  auto file = fs->open(directory / "file", OpenMode::kCreateExclusive, false);
  ASSERT_TRUE(file.has_value());
  const std::vector<std::byte> bytes(kMiB, std::byte{7});
  const auto began = std::chrono::steady_clock::now();
  ASSERT_TRUE((*file)->write_at(bytes, 0));
  EXPECT_GE(std::chrono::steady_clock::now() - began, std::chrono::milliseconds(25));

  // Two more through a queue travel one after the other.
  auto queue = fs->make_queue({.depth = 4});
  ASSERT_TRUE(queue.has_value());
  const auto queued = std::chrono::steady_clock::now();
  for (const std::uint64_t tag : {1, 2}) {
    ASSERT_TRUE((*queue)->submit({.op = IoOp::kWrite,
                                  .file = file->get(),
                                  .data = const_cast<std::byte*>(bytes.data()),
                                  .size_bytes = kMiB,
                                  .offset = tag * kMiB,
                                  .tag = tag}));
  }
  std::vector<IoCompletion> completions;
  while (completions.size() < 2) {
    EXPECT_EQ((*queue)->in_flight(), 2 - completions.size());
    ASSERT_TRUE((*queue)->wait(completions, std::nullopt));
  }
  EXPECT_GE(std::chrono::steady_clock::now() - queued, std::chrono::milliseconds(50));
  for (const IoCompletion& completion : completions) {
    ASSERT_TRUE(completion.size_bytes.has_value());
    EXPECT_EQ(*completion.size_bytes, kMiB);
  }
  std::vector<std::byte> read(3 * kMiB);
  ASSERT_EQ((*file)->read_at(read, 0).value_or(0), read.size());
  EXPECT_TRUE(std::ranges::all_of(read, [](std::byte byte) { return byte == std::byte{7}; }));
}

TEST(ScaleTest, KeepsTheProportionsOfTimesWhateverTheFactors) {
  const PaperModel& model = paper_model("13B");
  for (const Scale& scale : {Scale{1, 1}, Scale{20, 1}, Scale{20, 64}}) {
    const double copy_s = static_cast<double>(scale.size(model.state_bytes())) / scale.bandwidth(kPaperCopyBytesPerS);
    const double compute_s = std::chrono::duration<double>(scale.duration(model.compute_s())).count();
    EXPECT_NEAR(copy_s / compute_s, model.state_bytes() / kPaperCopyBytesPerS / model.compute_s(), 1e-6);
  }
}

}  // namespace
}  // namespace slackwater::bench
