// What the doctor says about lengths of turns, and about GPUs that copy at once: the judges, and what they are told
// about the simulated driver.
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/doctor/all_gpus.hpp"
#include "cli/doctor/turns.hpp"
#include "sim/sim_cuda.h"
#include "support/temp_dir.hpp"
#include "unit/device/cuda_trainer.hpp"

namespace slackwater::cli::doctor {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr std::uint64_t kHalf = 512u << 10;
constexpr std::uint64_t kOne = 1u << 20;
constexpr std::uint64_t kTwo = 2u << 20;
constexpr std::uint64_t kEight = 8u << 20;

TurnCosts costs_of(std::vector<TurnCost> turns) {
  return {.idle_p50_us = 10, .idle_p99_us = 12, .no_turns_gbs = 25, .turns = std::move(turns)};
}

TEST(DoctorTurns, TheDefaultPassesIfItMeetsBothGoals) {
  const Check check = turns_check("cuda:0", costs_of({{0, 4000, 1}, {kOne, 1.5, 1.02}, {kTwo, 3, 1.03}}));
  EXPECT_EQ(check.verdict, Verdict::kPass);
  EXPECT_EQ(check.section, "interference");
  EXPECT_EQ(check.name, "cuda:0 copy turns");
  EXPECT_THAT(check.figure, StartsWith("copy_turn=2 MiB: p99 3.0 x idle, staging 1.03 x (the default); idle 10"));
  EXPECT_EQ(check.threshold, "a turn with p99 up to 3 x idle, staging up to 1.03 x no turns");
  EXPECT_EQ(check.remedy, "");
}

TEST(DoctorTurns, AnotherOneThatMeetsBothIsNamedTheLongestFirst) {
  const Check check =
      turns_check("cuda:0", costs_of({{0, 4000, 1}, {kHalf, 1.5, 1.01}, {kOne, 2.9, 1.02}, {kTwo, 3.1, 1.01}}));
  EXPECT_EQ(check.verdict, Verdict::kPass);
  EXPECT_THAT(check.figure, StartsWith("copy_turn=1 MiB: p99 2.9 x idle, staging 1.02 x; the default, copy_turn=2 MiB: "
                                       "p99 3.1 x idle, staging 1.01 x; idle"));
  EXPECT_EQ(check.remedy, "set copy_turn=1 MiB");
}

TEST(DoctorTurns, NoTurnsAtAllIsTheLongestOne) {
  const Check check = turns_check("cuda:0", costs_of({{0, 2, 1}, {kOne, 2, 1.02}, {kTwo, 2, 1.04}}));
  EXPECT_EQ(check.verdict, Verdict::kPass);
  EXPECT_THAT(check.figure, StartsWith("copy_turn=0 (no turns): p99 2.0 x idle, staging 1.00 x; the default, "));
  EXPECT_EQ(check.remedy, "set copy_turn=0");
}

TEST(DoctorTurns, IfNoneMeetsBothTheTradeIsNamed) {
  // The figures of decision 14.
  const Check check = turns_check(
      "cuda:0", costs_of({{0, 16000, 1}, {kHalf, 3.4, 1.11}, {kOne, 5.4, 1.05}, {kTwo, 9.6, 1.03}, {kEight, 34, 1}}));
  EXPECT_EQ(check.verdict, Verdict::kWarn);
  EXPECT_THAT(check.figure, StartsWith("copy_turn=2 MiB: p99 9.6 x idle, staging 1.03 x; copy_turn=512 KiB: p99 3.4 x "
                                       "idle, staging 1.11 x; idle"));
  EXPECT_EQ(check.remedy, "keep the default, or set copy_turn=512 KiB if the latency of .item() matters more");
}

TEST(DoctorTurns, OfThoseThatLetTheTrainerPassTheCheapestIsTheOffer) {
  const Check check =
      turns_check("cuda:0", costs_of({{0, 16000, 1}, {kHalf, 2, 1.2}, {kOne, 3, 1.1}, {kTwo, 5, 1.05}}));
  EXPECT_EQ(check.verdict, Verdict::kWarn);
  EXPECT_THAT(check.remedy, HasSubstr("copy_turn=1 MiB"));
}

TEST(DoctorTurns, IfTheDefaultOnlyTakesTooLongALongerOneIsTheOffer) {
  const Check check =
      turns_check("cuda:0", costs_of({{0, 400, 1}, {kOne, 1.5, 1.2}, {kTwo, 2.5, 1.1}, {kEight, 8, 1.02}}));
  EXPECT_EQ(check.verdict, Verdict::kWarn);
  EXPECT_EQ(check.remedy, "keep the default, or set copy_turn=8 MiB if the time until a state is staged matters more");
}

TEST(DoctorTurns, NothingIsOfferedThatIsNoBetter) {
  const Check check = turns_check("cuda:0", costs_of({{0, 400, 1}, {kOne, 70, 1.1}, {kTwo, 80, 1.05}}));
  EXPECT_EQ(check.verdict, Verdict::kWarn);
  EXPECT_THAT(check.figure, Not(HasSubstr("1 MiB")));
  EXPECT_THAT(check.remedy, StartsWith("keep the default: "));
}

TEST(DoctorTurns, AMachineThatIsSlowWhenIdleIsNotJudged) {
  TurnCosts costs = costs_of({{0, 400, 1}, {kHalf, 9, 1.2}, {kTwo, 80, 1.05}});
  costs.idle_p99_us = 31;
  const Check check = turns_check("cuda:0", costs);
  EXPECT_EQ(check.verdict, Verdict::kWarn);
  EXPECT_THAT(check.remedy, HasSubstr("when nothing is copied"));
}

TEST(DoctorTurns, WithoutAFigureOfTheDefaultThereIsNoVerdict) {
  EXPECT_EQ(turns_check("cuda:0", costs_of({})).verdict, Verdict::kSkip);
  EXPECT_EQ(no_copy_turns_check("why").verdict, Verdict::kSkip);
}

// 8 MiB take 400 us at 20.97 GB/s. In turns of 512 KiB they are 16, which took 30 us longer: 2 us for each of 15.
TEST(DoctorTurns, TellsWhatATurnCostsForReports) {
  TurnCosts costs = costs_of({{0, 400, 1}, {kHalf, 3, 1.075}, {kTwo, 9, 1.02}});
  costs.no_turns_gbs = 20.97152;
  EXPECT_NEAR(turn_cost_us(costs, kEight), 2, 1e-9);
  costs.turns[1].staging_over_no_turns = 0.99;
  EXPECT_EQ(turn_cost_us(costs, kEight), 0);
  const auto line = parse_check(check_json(turns_check("cuda:0", costs)).dump());
  ASSERT_TRUE(line.has_value());
  EXPECT_EQ(line->values["idle_p50_us"], 10);
  EXPECT_EQ(line->values["turn_cost_us"], 0);
  EXPECT_EQ(line->values["turns"][2]["copy_turn_bytes"], kTwo);
  EXPECT_EQ(line->values["turns"][2]["p99_over_idle"], 9);
  EXPECT_EQ(line->values["turns"][2]["staging_over_no_turns"], 1.02);
}

TEST(DoctorGpus, AllAtOnceNextToTheSumOfEachAlone) {
  const Check fine = gpus_at_once_check({.alone = {50, 50}, .at_once = {40, 30}});
  EXPECT_EQ(fine.verdict, Verdict::kPass);
  EXPECT_EQ(fine.figure,
            "2 GPUs: 70.0 GB/s, 0.70 of the sum of each alone (100.0 GB/s); cuda:1 loses most: 30.0 instead of 50.0");
  EXPECT_EQ(fine.remedy, "");
  EXPECT_EQ(fine.values["at_once_gbs"][1], 30);
  const Check shared = gpus_at_once_check({.alone = {50, 25, 50}, .at_once = {20, 24, 20}});
  EXPECT_EQ(shared.verdict, Verdict::kWarn);
  EXPECT_THAT(shared.figure, HasSubstr("cuda:0 loses most"));
  EXPECT_THAT(shared.remedy, HasSubstr("nvidia-smi topo -m"));
}

class DoctorOnGpus : public cuda::SimulatedDriver {
 protected:
  DoctorOnGpus() : SimulatedDriver(2) {}
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(SimulatedDriver::SetUp());
    driver_.reset();
    settings_.scratch = directory_.path();
    settings_.quick = true;
    settings_.soft = true;
    settings_.cuda_driver = SW_SIM_CUDA_LIBRARY;
  }
  // A small copy on an idle device takes the engine `engine_us`, and `elsewhere_us` more until the host sees its end.
  // At 250 MB/s, a turn of 1 MiB takes 4.2 ms. Whatever this machine holds up is short next to that.
  Check turns_with(std::uint64_t engine_us, std::uint64_t elsewhere_us) {
    swsim_device_config config{};
    EXPECT_EQ(swsim_get_config(0, &config), 0);
    config.d2h_bytes_per_s = 250'000'000;
    config.copy_latency_ns = engine_us * 1000;
    config.host_latency_ns = elsewhere_us * 1000;
    EXPECT_EQ(swsim_set_config(0, &config), 0);
    auto scratch = cuda::CudaScratch::open(settings_.cuda_driver, 0);
    if (!scratch) throw std::runtime_error(scratch.error().to_string());
    return copy_turns_check(settings_, **scratch, 32u << 20, 1);
  }

  test::TempDir directory_;
  Settings settings_;
};

// Only a machine that holds threads up for milliseconds, again and again, keeps these from the first try.
constexpr int kTries = 20;

TEST_F(DoctorOnGpus, WhereACopyCostsTheEngineLittleTheRightTurnPasses) {
  Check check;
  for (int i = 0; i < kTries && check.remedy != "set copy_turn=1 MiB"; ++i) check = turns_with(10, 3000);
  EXPECT_EQ(check.verdict, Verdict::kPass) << check_text(check, false);
  EXPECT_THAT(check.figure, StartsWith("copy_turn=1 MiB: ")) << check_text(check, false);
}

TEST_F(DoctorOnGpus, WhereItCostsMuchNoTurnPasses) {
  Check check;
  for (int i = 0; i < kTries && check.verdict != Verdict::kWarn; ++i) check = turns_with(1000, 100);
  EXPECT_EQ(check.verdict, Verdict::kWarn) << check_text(check, false);
  EXPECT_THAT(check.figure, StartsWith("copy_turn=2 MiB: "));
  EXPECT_GE(check.values["turn_cost_us"].get<double>(), 500) << check_text(check, false);
}

TEST_F(DoctorOnGpus, ACopyThatFailsFailsTheLine) {
  swsim_fail_call("cuMemcpyDtoHAsync_v2", 20, 999, 0);
  const Check check = turns_with(0, 0);
  EXPECT_EQ(check.verdict, Verdict::kFail) << check_text(check, false);
}

TEST_F(DoctorOnGpus, MemoryThatCannotBeRegisteredIsLeftToItsOwnLine) {
  swsim_fail_call("cuMemHostRegister_v2", 2, 2, 0);
  const Check check = turns_with(0, 0);
  EXPECT_EQ(check.verdict, Verdict::kSkip) << check_text(check, false);
}

TEST_F(DoctorOnGpus, CopyAtOnceAsFastAsAloneIfTheyShareNothing) {
  for (const int device : {0, 1}) set_d2h_speed(100'000'000, device);
  std::vector<Check> checks;
  const auto measure = [&] {
    checks.clear();
    all_gpus_checks(settings_, 2, 128u << 20, [&](Check check) { checks.push_back(std::move(check)); });
  };
  for (int i = 0; i < kTries && (checks.empty() || checks[0].verdict != Verdict::kPass); ++i) measure();
  ASSERT_EQ(checks.size(), 1u);
  EXPECT_EQ(checks[0].verdict, Verdict::kPass) << check_text(checks[0], false);
  EXPECT_THAT(checks[0].figure, StartsWith("2 GPUs: "));
  EXPECT_LT(checks[0].values["alone_gbs"][0], 0.11);
}

TEST_F(DoctorOnGpus, OneThatCannotBeOpenedFailsTheLine) {
  std::vector<Check> checks;
  all_gpus_checks(settings_, 3, 256u << 20, [&](Check check) { checks.push_back(std::move(check)); });
  ASSERT_EQ(checks.size(), 1u);
  EXPECT_EQ(checks[0].verdict, Verdict::kFail);
  EXPECT_THAT(checks[0].figure, HasSubstr("cuda:2"));
  checks.clear();
  all_gpus_checks(settings_, 2, 32u << 20, [&](Check check) { checks.push_back(std::move(check)); });
  EXPECT_EQ(checks.at(0).verdict, Verdict::kSkip);
}

}  // namespace
}  // namespace slackwater::cli::doctor
