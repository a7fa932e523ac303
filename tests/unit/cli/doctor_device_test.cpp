// Doctor's checks of copies and their order on a simulated driver that is broken. doctor_test.cpp runs them all on a
// healthy one.
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "cli/doctor/copies.hpp"
#include "cli/doctor/fake_training.hpp"
#include "cli/doctor/order.hpp"
#include "sim/sim_cuda.h"
#include "support/temp_dir.hpp"
#include "unit/device/cuda_trainer.hpp"

namespace slackwater::cli::doctor {
namespace {

class DoctorOnDevice : public cuda::SimulatedDriver {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(SimulatedDriver::SetUp());
    driver_.reset();
    settings_.scratch = directory_.path();
    settings_.quick = true;
    settings_.soft = true;  // no test depends on how fast this machine is
    settings_.cuda_driver = SW_SIM_CUDA_LIBRARY;
    auto scratch = cuda::CudaScratch::open(settings_.cuda_driver, 0);
    ASSERT_TRUE(scratch.has_value()) << scratch.error().to_string();
    scratch_ = std::move(*scratch);
  }
  void TearDown() override {
    swsim_break(0);
    (void)swsim_flip_copies(0, 0);
    scratch_.reset();
    SimulatedDriver::TearDown();
  }

  test::TempDir directory_;
  Settings settings_;
  std::unique_ptr<cuda::CudaScratch> scratch_;
};

TEST_F(DoctorOnDevice, TellsWhatTheDeviceIs) {
  const auto facts = scratch_->facts();
  ASSERT_TRUE(facts.has_value());
  EXPECT_EQ(facts->model, "Slackwater simulated device");
  EXPECT_EQ(facts->total_bytes, 16ull << 30);
  EXPECT_EQ(facts->free_bytes, 16ull << 30);
  EXPECT_EQ(facts->copy_engines, 2);
  const auto driver = cuda::inspect_driver(SW_SIM_CUDA_LIBRARY);
  ASSERT_TRUE(driver.has_value());
  EXPECT_EQ(driver->device_count, 1);
  EXPECT_TRUE(driver->path.ends_with("libslackwater_sim_cuda.so")) << driver->path;
  EXPECT_TRUE(driver->missing.empty());
}

TEST_F(DoctorOnDevice, TakesAllButALittleMemory) {
  const auto left = scratch_->take_all_but(8u << 20);
  ASSERT_TRUE(left.has_value());
  EXPECT_GE(*left, 8u << 20);
  EXPECT_LT(*left, 9u << 20);
  EXPECT_FALSE(scratch_->allocate(16u << 20).has_value());
  scratch_->free_all();
  EXPECT_EQ(scratch_->facts()->free_bytes, 16ull << 30);
}

TEST_F(DoctorOnDevice, ComparesEveryByte) {
  auto training = FakeTraining::begin(*scratch_, settings_, 1u << 20);
  ASSERT_TRUE(training.has_value());
  const std::vector<Slice> slices{{.offset = 0, .width = 5000},
                                  {.offset = 8192, .width = 100, .rows = 3, .pitch = 256}};
  auto engine = EngineRun::open(settings_, settings_.engine_options("bytes"));
  ASSERT_TRUE(engine.has_value());
  auto snapshot = (*engine)->save(1, training->state(slices));
  ASSERT_TRUE(snapshot.has_value() && snapshot->has_value());
  ASSERT_TRUE((*snapshot)->wait(Level::kCommitted).has_value());

  std::vector<std::byte> expected(training->expected().begin(), training->expected().end());
  EXPECT_EQ(training->differs(**engine, 1, slices, expected).value(), std::nullopt);
  expected[8192 + 100] ^= std::byte{1};  // between two rows
  EXPECT_EQ(training->differs(**engine, 1, slices, expected).value(), std::nullopt);
  expected[8192 + 2 * 256 + 99] ^= std::byte{1};  // the last byte of the last row
  EXPECT_EQ(training->differs(**engine, 1, slices, expected).value(), "tensor.1 of 300 bytes differs from byte 611 on");
  expected[4999] ^= std::byte{1};
  EXPECT_EQ(training->differs(**engine, 1, slices, expected).value(),
            "tensor.0 of 5000 bytes differs from byte 4999 on");
}

TEST_F(DoctorOnDevice, FindsWaitsThatAreIgnored) {
  // Copies take their time, so that an update that does not wait meets them.
  set_d2h_speed(200'000'000);
  swsim_break(SWSIM_IGNORE_WAITS);
  const Check check = rounds_check(settings_, *scratch_);
  EXPECT_EQ(check.verdict, Verdict::kFail) << check_text(check, false);
  EXPECT_EQ(check.name, "cuda:0 order");
}

TEST_F(DoctorOnDevice, FindsBatchesThatAreWrong) {
  swsim_break(SWSIM_WRONG_BATCHES);
  const Check check = batches_check(settings_, *scratch_);
  EXPECT_EQ(check.verdict, Verdict::kFail) << check_text(check, false);
  EXPECT_TRUE(check.figure.starts_with("batched copies")) << check.figure;
  EXPECT_NE(check.remedy.find("batched_copies=False"), std::string::npos);
}

TEST_F(DoctorOnDevice, FindsCopiesThatReturnWrongBytes) {
  ASSERT_EQ(swsim_flip_copies(0, 7), 0);
  const Check check = rounds_check(settings_, *scratch_);
  EXPECT_EQ(check.verdict, Verdict::kFail) << check_text(check, false);
}

TEST_F(DoctorOnDevice, ACopyThatDoesNotEndTimesOut) {
  auto device = scratch_->allocate(4096);
  auto host = scratch_->allocate_pinned(4096);
  ASSERT_TRUE(device.has_value() && host.has_value());
  ASSERT_EQ(swsim_stall_copies(0, SWSIM_STALL_ON), 0);
  ASSERT_TRUE(scratch_->upload(*device, *host, 4096).has_value());
  const Status waited = scratch_->wait(std::chrono::milliseconds(20));
  ASSERT_FALSE(waited.has_value());
  EXPECT_EQ(waited.error().kind, ErrorKind::kTimeout);
  ASSERT_EQ(swsim_stall_copies(0, SWSIM_STALL_OFF), 0);
  EXPECT_TRUE(scratch_->wait(std::chrono::minutes(1)).has_value());
}

TEST_F(DoctorOnDevice, MeasuresCopiesAndCalls) {
  std::vector<Check> checks;
  copy_checks(settings_, *scratch_, 8u << 20, [&](Check check) { checks.push_back(std::move(check)); });
  ASSERT_EQ(checks.size(), 3u);
  for (const Check& check : checks) EXPECT_NE(check.verdict, Verdict::kFail) << check_text(check, false);
}

}  // namespace
}  // namespace slackwater::cli::doctor
