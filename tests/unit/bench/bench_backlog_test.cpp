// `slackwater_bench backlog`: its short form from outside, and what its figures rest on.
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "bench/backlog/measure.hpp"
#include "bench/backlog/small_copies.hpp"
#include "support/temp_dir.hpp"
#include "support/write_checkpoint.hpp"

namespace slackwater::bench {
namespace {

using nlohmann::json;
using testing::HasSubstr;

struct Outcome {
  int code = -1;
  std::string out;
  std::string err;
};

class BenchBacklogTest : public testing::Test {
 protected:
  [[nodiscard]] Outcome run(const std::string& arguments) const {
    const std::string command = std::string(SLACKWATER_BENCH_BINARY) + " backlog " + arguments + " >" +
                                (directory_ / "stdout") + " 2>" + (directory_ / "stderr");
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, test::read_file_text(directory_ / "stdout"),
            test::read_file_text(directory_ / "stderr")};
  }
  test::TempDir directory_;
};

TEST_F(BenchBacklogTest, ShowsTheWaitAndTheTimeUntilStagedForEachSetting) {
  const std::string file = directory_ / "figures.json";
  const Outcome outcome =
      run("--quick --simulator " SW_SIM_CUDA_LIBRARY " --dir " + directory_.path() + " --json " + file);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("simulated GPU"));
  EXPECT_THAT(outcome.out, HasSubstr("1/8 of the bytes"));
  EXPECT_THAT(outcome.out, HasSubstr("every byte is right"));

  const json figures = json::parse(test::read_file_text(file));
  EXPECT_EQ(figures["scale"], 8);
  ASSERT_EQ(figures["rows"].size(), 3u);
  EXPECT_EQ(figures["rows"][0]["copies_ahead_bytes"], 0);
  EXPECT_EQ(figures["rows"][0]["of_reference"], 1);
  EXPECT_EQ(figures["rows"][1]["copy_turn_bytes"], 0);
  EXPECT_EQ(figures["rows"][2]["copy_turn_bytes"], default_setting().copy_turn_bytes);
  for (const json& row : figures["rows"]) EXPECT_GT(row["staged_s"], 0) << row;
  EXPECT_EQ(figures["checkpoints_compared"], 3);
  EXPECT_GE(figures["idle"]["p50_s"], 10e-6) << "2 us of the engine and 8 us of the call";
}

TEST_F(BenchBacklogTest, RunsTheSettingsThatAreAskedFor) {
  const std::string file = directory_ / "figures.json";
  const Outcome outcome =
      run("--quick --ahead 32 --turn 1 --turn 0 --engine-us 1 --simulator " SW_SIM_CUDA_LIBRARY " --dir " +
          directory_.path() + " --json " + file);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const json figures = json::parse(test::read_file_text(file));
  ASSERT_EQ(figures["rows"].size(), 3u);
  EXPECT_EQ(figures["rows"][1]["copies_ahead_bytes"], 32 * kMiB);
  EXPECT_EQ(figures["rows"][1]["copy_turn_bytes"], kMiB);
  EXPECT_EQ(figures["rows"][2]["copy_turn_bytes"], 0);
  EXPECT_EQ(figures["engine_s"], 1e-6);
  EXPECT_TRUE(figures["verdicts"].empty()) << "goals are for the defaults";
}

TEST_F(BenchBacklogTest, SaysInOneSentenceThatTheSimulatorIsMissing) {
  const Outcome outcome = run("--quick --simulator " + (directory_ / "nowhere.so"));
  EXPECT_EQ(outcome.code, 2);
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err, HasSubstr("the simulated CUDA driver was not found"));
  EXPECT_EQ(std::ranges::count(outcome.err, '\n'), 1);
}

TEST(WaitsTest, HasNoFiguresWithoutSamples) {
  EXPECT_FALSE(Waits::of({}).has_value());
  const auto waits = Waits::of({3, 1, 2});
  ASSERT_TRUE(waits.has_value());
  EXPECT_EQ(waits->count, 3u);
  EXPECT_EQ(waits->p50_s, 2);
  EXPECT_EQ(waits->max_s, 3);
}

TEST(SmallCopiesTest, AnIdleCopyTakesAtLeastTheEnginesTime) {
  const auto gpus = SimulatedGpu::load(SW_SIM_CUDA_LIBRARY, 1);
  ASSERT_TRUE(gpus.has_value()) << gpus.error().to_string();
  const SimulatedGpu& gpu = *gpus->front();
  const cuda::Scope scope(gpu.context());
  ASSERT_TRUE(gpu.set_copy_speed(1e9, std::chrono::microseconds(50)));
  const auto copies = SmallCopies::create(gpu);
  ASSERT_TRUE(copies.has_value()) << copies.error().to_string();
  int timed = 0;
  while (timed < 10) {  // a busy machine may hold up any of them
    for (const auto& seconds : {(*copies)->copy(), (*copies)->copy_when_idle()}) {
      ASSERT_TRUE(seconds.has_value()) << seconds.error().to_string();
      if (!seconds->has_value()) continue;
      EXPECT_GE(**seconds, 50e-6);
      ++timed;
    }
  }
}

}  // namespace
}  // namespace slackwater::bench
