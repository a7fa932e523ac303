#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "device/cuda/context.hpp"
#include "device/cuda/driver.hpp"
#include "support/temp_dir.hpp"
#include "unit/device/cuda_trainer.hpp"

namespace slackwater::cuda {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class CudaDriver : public SimulatedDriver {};

TEST_F(CudaDriver, ThatIsNotThereIsNamedInOneSentence) {
  const auto driver = Driver::load("libno-such-driver.so.1");
  ASSERT_FALSE(driver.has_value());
  EXPECT_EQ(driver.error().kind, ErrorKind::kUnsupported);
  EXPECT_THAT(driver.error().to_string(), AllOf(HasSubstr("libno-such-driver.so.1"), HasSubstr("install")));
}

TEST_F(CudaDriver, WithoutARequiredFunctionIsRefusedWithItsNameAndTheVersion) {
  const auto driver = Driver::load(SW_STUB_CUDA_LIBRARY);
  ASSERT_FALSE(driver.has_value());
  EXPECT_EQ(driver.error().kind, ErrorKind::kUnsupported);
  EXPECT_THAT(driver.error().to_string(), AllOf(HasSubstr("cuGetErrorName"), HasSubstr("11.4"), HasSubstr("newer")));
}

TEST_F(CudaDriver, ThatCannotBeInitialisedSaysWhy) {
  swsim_fail_call("cuInit", 1, static_cast<int>(CUresult::kNoDevice), 0);
  const auto driver = Driver::load(SW_SIM_CUDA_LIBRARY);
  ASSERT_FALSE(driver.has_value());
  EXPECT_EQ(driver.error().kind, ErrorKind::kUnsupported);
  EXPECT_THAT(driver.error().to_string(), HasSubstr("CUDA_ERROR_NO_DEVICE"));
}

TEST_F(CudaDriver, ErrorsNameCallDeviceAndCode) {
  const Error lost = driver_->error(CUresult::kIllegalAddress, "cuEventSynchronize", "cuda:3");
  EXPECT_EQ(lost.kind, ErrorKind::kDevice);
  EXPECT_FALSE(lost.retryable);
  EXPECT_THAT(lost.to_string(), AllOf(HasSubstr("cuEventSynchronize"), HasSubstr("cuda:3"),
                                      HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS"), HasSubstr("restart it and restore")));
  const Error full = driver_->error(CUresult::kOutOfMemory, "cuMemAlloc_v2", "cuda:0");
  EXPECT_EQ(full.kind, ErrorKind::kOutOfMemory);
  EXPECT_TRUE(full.retryable);
  const Error wrong = driver_->error(CUresult::kInvalidValue, "cuEventRecord", "cuda:0");
  EXPECT_THAT(wrong.to_string(), Not(HasSubstr("restart it and restore")));
}

TEST_F(CudaDriver, NeedNotKnowItsOwnCode) {
  const Error odd = driver_->error(static_cast<CUresult>(98765), "cuInit", "cuda:0");
  EXPECT_THAT(odd.to_string(), HasSubstr("98765"));
}

TEST_F(CudaDriver, IsActiveOnlyWhileSomebodyHoldsAContext) {
  EXPECT_TRUE(active_devices("libno-such-driver.so.1").empty());
  EXPECT_TRUE(active_devices(SW_SIM_CUDA_LIBRARY).empty()) << "loaded, but not in use";
  {
    const auto context = Context::retain(driver_, 0);
    ASSERT_TRUE(context.has_value());
    EXPECT_EQ(active_devices(SW_SIM_CUDA_LIBRARY), std::vector{0});
  }
  EXPECT_TRUE(active_devices(SW_SIM_CUDA_LIBRARY).empty());
}

TEST_F(CudaDriver, HasNoDeviceBeyondItsCount) {
  for (const int ordinal : {-1, 1}) {
    const auto context = Context::retain(driver_, ordinal);
    ASSERT_FALSE(context.has_value());
    EXPECT_EQ(context.error().kind, ErrorKind::kUnsupported);
    EXPECT_THAT(context.error().to_string(), HasSubstr("shows 1"));
  }
}

TEST_F(CudaDriver, AScopeLeavesContextAndCaptureModeAsTheyWere) {
  const auto context = Context::retain(driver_, 0);
  ASSERT_TRUE(context.has_value());
  CUcontext before = nullptr;
  {
    const Scope scope(**context);
    ASSERT_TRUE(scope.status().has_value());
    must(cuCtxGetCurrent(&before));
    EXPECT_NE(before, nullptr);
    auto mode = CUstreamCaptureMode::kRelaxed;
    must(cuThreadExchangeStreamCaptureMode(&mode));
    EXPECT_EQ(mode, CUstreamCaptureMode::kRelaxed) << "ours";
  }
  must(cuCtxGetCurrent(&before));
  EXPECT_EQ(before, nullptr);
  auto mode = CUstreamCaptureMode::kGlobal;
  must(cuThreadExchangeStreamCaptureMode(&mode));
  EXPECT_EQ(mode, CUstreamCaptureMode::kGlobal);
}

TEST_F(CudaDriver, TellsTheNumaNodeOfItsDevice) {
  swsim_device_config config{};
  must(swsim_get_config(0, &config));
  config.numa_node = 3;
  must(swsim_set_config(0, &config));
  const auto context = Context::retain(driver_, 0);
  ASSERT_TRUE(context.has_value());
  EXPECT_EQ((*context)->numa_node(), 3);
}

TEST(NumaNodeOfPci, IsWhatTheKernelListsAndUnknownOtherwise) {
  const test::TempDir directory;
  const auto list = [&](const std::string& device, const std::string& node) {
    std::filesystem::create_directories(directory / device);
    std::ofstream(directory / (device + "/numa_node")) << node << "\n";
  };
  list("0000:3b:00.0", "1");
  list("0000:af:00.0", "-1");
  EXPECT_EQ(numa_node_of_pci("0000:3B:00.0", directory.path()), 1) << "the driver writes upper case, the kernel lower";
  EXPECT_EQ(numa_node_of_pci("0000:AF:00.0", directory.path()), -1);
  EXPECT_EQ(numa_node_of_pci("0000:00:00.0", directory.path()), -1);
}

}  // namespace
}  // namespace slackwater::cuda
