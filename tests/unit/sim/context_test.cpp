#include <dlfcn.h>

#include <cstdlib>
#include <string>
#include <thread>

#include "support/child_process.hpp"
#include "unit/sim/sim_fixture.hpp"

namespace slackwater::cuda::test {
namespace {

using SimContext = SimTest;

TEST(SimBeforeInit, NothingWorksBeforeInit) {
  int count = 0;
  EXPECT_EQ(cuDeviceGetCount(&count), CUresult::kNotInitialized);
  EXPECT_EQ(cuCtxSynchronize(), CUresult::kNotInitialized);
  EXPECT_EQ(cuDriverGetVersion(&count), kOk);
  EXPECT_EQ(count, 13000);
  EXPECT_EQ(swsim_reset(), 0u);
}

TEST(SimBeforeInit, EnvironmentSetsTheNumberOfDevices) {
  ASSERT_EQ(::setenv("SWSIM_DEVICES", "3", 1), 0);
  int count = 0;
  EXPECT_EQ(cuInit(0), kOk);
  EXPECT_EQ(cuDeviceGetCount(&count), kOk);
  EXPECT_EQ(count, 3);
  ASSERT_EQ(::unsetenv("SWSIM_DEVICES"), 0);
  EXPECT_EQ(swsim_reset(), 0u);
}

TEST(SimBeforeInit, NoDeviceIsTold) {
  ASSERT_EQ(::setenv("SWSIM_DEVICES", "0", 1), 0);
  EXPECT_EQ(cuInit(0), CUresult::kNoDevice);
  ASSERT_EQ(::unsetenv("SWSIM_DEVICES"), 0);
  EXPECT_EQ(swsim_reset(), 0u);
}

TEST_F(SimContext, DevicesDescribeThemselves) {
  CUdevice device = -1;
  EXPECT_EQ(cuDeviceGet(&device, 1), kOk);
  EXPECT_EQ(device, 1);
  EXPECT_EQ(cuDeviceGet(&device, 2), CUresult::kInvalidDevice);
  char text[64] = {};
  EXPECT_EQ(cuDeviceGetName(text, sizeof text, 0), kOk);
  EXPECT_NE(std::string(text).find("simulated"), std::string::npos);
  EXPECT_EQ(cuDeviceGetName(text, 4, 0), kOk);
  EXPECT_EQ(std::string(text), "Sla");
  EXPECT_EQ(cuDeviceGetPCIBusId(text, sizeof text, 1), kOk);
  EXPECT_EQ(std::string(text), "0000:02:00.0");
  configure(0, [](swsim_device_config& config) { config.numa_node = 5; });
  int value = 0;
  EXPECT_EQ(cuDeviceGetAttribute(&value, CUdevice_attribute::kHostNumaId, 0), kOk);
  EXPECT_EQ(value, 5);
  EXPECT_EQ(cuDeviceGetAttribute(&value, CUdevice_attribute::kAsyncEngineCount, 0), kOk);
  EXPECT_EQ(value, 2);
  EXPECT_EQ(cuDeviceGetAttribute(&value, static_cast<CUdevice_attribute>(9999), 0), CUresult::kInvalidValue);
}

TEST_F(SimContext, ErrorsHaveNamesAndTexts) {
  const char* text = nullptr;
  EXPECT_EQ(cuGetErrorName(CUresult::kIllegalAddress, &text), kOk);
  EXPECT_STREQ(text, "CUDA_ERROR_ILLEGAL_ADDRESS");
  EXPECT_EQ(cuGetErrorString(CUresult::kIllegalAddress, &text), kOk);
  EXPECT_NE(std::string(text), "");
  EXPECT_EQ(cuGetErrorName(static_cast<CUresult>(12345), &text), CUresult::kInvalidValue);
  EXPECT_EQ(text, nullptr);
}

TEST_F(SimContext, CallsWithoutACurrentContextAreRefused) {
  ASSERT_EQ(cuCtxSetCurrent(nullptr), kOk);
  CUstream made = nullptr;
  CUdeviceptr address = 0;
  EXPECT_EQ(cuStreamCreateWithPriority(&made, 0, 0), CUresult::kInvalidContext);
  EXPECT_EQ(cuMemAlloc_v2(&address, 64), CUresult::kInvalidContext);
  EXPECT_EQ(cuStreamSynchronize(nullptr), CUresult::kInvalidContext);
  use(0);
  std::thread([] { EXPECT_EQ(cuCtxSynchronize(), CUresult::kInvalidContext); }).join();
}

TEST_F(SimContext, ContextsAreAStack) {
  CUcontext current = nullptr;
  EXPECT_EQ(cuCtxPushCurrent_v2(contexts_[1]), kOk);
  EXPECT_EQ(cuCtxGetCurrent(&current), kOk);
  EXPECT_EQ(current, contexts_[1]);
  EXPECT_EQ(cuCtxPopCurrent_v2(&current), kOk);
  EXPECT_EQ(current, contexts_[1]);
  EXPECT_EQ(cuCtxGetCurrent(&current), kOk);
  EXPECT_EQ(current, contexts_[0]);
  EXPECT_EQ(cuCtxPopCurrent_v2(nullptr), kOk);
  EXPECT_EQ(cuCtxPopCurrent_v2(nullptr), CUresult::kInvalidContext);
  EXPECT_EQ(cuCtxPushCurrent_v2(reinterpret_cast<CUcontext>(0x1234)), CUresult::kInvalidContext);
}

TEST_F(SimContext, PrimaryContextLivesUntilItsLastRelease) {
  CUcontext again = nullptr;
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&again, 0), kOk);
  EXPECT_EQ(again, contexts_[0]);
  ASSERT_EQ(cuDevicePrimaryCtxRelease_v2(0), kOk);
  EXPECT_EQ(cuCtxSynchronize(), kOk);
  ASSERT_EQ(cuDevicePrimaryCtxRelease_v2(0), kOk);
  unsigned flags = 1;
  int active = 1;
  EXPECT_EQ(cuDevicePrimaryCtxGetState(0, &flags, &active), kOk);
  EXPECT_EQ(active, 0);
  EXPECT_EQ(cuCtxSynchronize(), CUresult::kContextIsDestroyed);
  EXPECT_EQ(cuDevicePrimaryCtxRelease_v2(0), CUresult::kInvalidContext);
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&contexts_[0], 0), kOk);
  EXPECT_NE(contexts_[0], again);
}

TEST_F(SimContext, WhatAContextTakesWithItIsCounted) {
  use(1);
  CUstream leaked_stream = nullptr;
  CUevent leaked_event = nullptr;
  CUdeviceptr leaked_memory = 0;
  ASSERT_EQ(cuStreamCreateWithPriority(&leaked_stream, 0, 0), kOk);
  ASSERT_EQ(cuEventCreate(&leaked_event, 0), kOk);
  ASSERT_EQ(cuMemAlloc_v2(&leaked_memory, 64), kOk);
  const swsim_counts before = counts();
  EXPECT_EQ(before.streams, 1u);
  EXPECT_EQ(before.events, 1u);
  EXPECT_EQ(before.allocations, 1u);
  EXPECT_EQ(before.contexts, 2u);
  EXPECT_GT(swsim_reset(), 0u);  // refused
  ASSERT_EQ(cuDevicePrimaryCtxRelease_v2(1), kOk);
  EXPECT_EQ(counts().abandoned, 3u);
  EXPECT_EQ(counts().streams, 0u);
  ASSERT_EQ(cuDevicePrimaryCtxRelease_v2(0), kOk);
  ASSERT_EQ(swsim_reset(), 0u);
  SetUp();
}

TEST_F(SimContext, NumberOfDevicesIsFixedAtInit) { EXPECT_EQ(swsim_configure(4), code_of(CUresult::kNotPermitted)); }

TEST_F(SimContext, CallsAreCountedByName) {
  const std::uint64_t before = swsim_calls("cuStreamCreateWithPriority");
  stream();
  EXPECT_EQ(swsim_calls("cuStreamCreateWithPriority"), before + 1);
  EXPECT_EQ(swsim_calls("cuNeverHeardOf"), 0u);
}

TEST_F(SimContext, OldSymbolsAreTraps) {
  const char* const old[] = {"cuDevicePrimaryCtxRelease",
                             "cuCtxPushCurrent",
                             "cuCtxPopCurrent",
                             "cuStreamDestroy",
                             "cuEventDestroy",
                             "cuGraphInstantiate",
                             "cuGraphInstantiate_v2",
                             "cuMemAlloc",
                             "cuMemFree",
                             "cuMemGetInfo",
                             "cuMemHostRegister",
                             "cuMemcpyDtoHAsync",
                             "cuMemcpyHtoDAsync",
                             "cuMemcpyDtoDAsync",
                             "cuMemcpy2DAsync"};
  for (const char* symbol : old) {
    const auto function = reinterpret_cast<CUresult (*)()>(::dlsym(RTLD_DEFAULT, symbol));
    ASSERT_NE(function, nullptr) << symbol;
    EXPECT_EQ(function(), CUresult::kNotSupported) << symbol;
    EXPECT_EQ(swsim_calls(symbol), 1u);
  }
  EXPECT_EQ(counts().old_abi_calls, std::size(old));
}

TEST_F(SimContext, EveryFunctionOfTheTableIsExported) {
  std::vector<const char*> names;
#define SW_NAME(name, parameters) names.push_back(#name);
  SW_CUDA_REQUIRED_FUNCTIONS(SW_NAME)
  SW_CUDA_OPTIONAL_FUNCTIONS(SW_NAME)
#undef SW_NAME
  for (const char* symbol : names) EXPECT_NE(::dlsym(RTLD_DEFAULT, symbol), nullptr) << symbol;
}

TEST_F(SimContext, ForkedChildHasNoDriver) {
  const int code = slackwater::test::run_in_child([] {
    int count = 0;
    if (cuDeviceGetCount(&count) != CUresult::kNotInitialized) return 1;
    if (cuCtxSynchronize() != CUresult::kNotInitialized) return 2;
    return 0;
  });
  EXPECT_EQ(code, 0);
  EXPECT_EQ(cuCtxSynchronize(), kOk);
}

}  // namespace
}  // namespace slackwater::cuda::test
