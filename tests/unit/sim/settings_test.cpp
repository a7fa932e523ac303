// SWSIM_CONFIG, and swsim_set with the same text.
#include <cstdlib>
#include <string>

#include "unit/sim/sim_fixture.hpp"

namespace slackwater::cuda::test {
namespace {

// Without a fixture's cuInit: the environment is read at the first use of the driver.
class SimEnvironment : public ::testing::Test {
 protected:
  void TearDown() override {
    ::unsetenv("SWSIM_CONFIG");
    if (context_ != nullptr) {
      EXPECT_EQ(cuDevicePrimaryCtxRelease_v2(0), kOk);
    }
    EXPECT_EQ(swsim_reset(), 0u);
  }
  static CUresult init(const char* text) {
    ::setenv("SWSIM_CONFIG", text, 1);
    return cuInit(0);
  }
  void use() {
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&context_, 0), kOk);
    ASSERT_EQ(cuCtxSetCurrent(context_), kOk);
  }
  static swsim_device_config config(int device) {
    swsim_device_config now{};
    EXPECT_EQ(swsim_get_config(device, &now), 0);
    return now;
  }
  // What cuInit prints while it fails.
  static std::string complaint(const char* text) {
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(init(text), CUresult::kInvalidValue) << text;
    EXPECT_EQ(swsim_reset(), 0u);
    return ::testing::internal::GetCapturedStderr();
  }

  CUcontext context_ = nullptr;
};

TEST_F(SimEnvironment, SetsEveryFieldOfTheConfiguration) {
  ASSERT_EQ(init("devices=2,memory_bytes=1,d2h_bytes_per_s=2,h2d_bytes_per_s=3,d2d_bytes_per_s=4,"
                 "pageable_bytes_per_s=5,copy_latency_ns=6,numa_node=-1,copy_priorities=1,queue_limit=9,"
                 "host_latency_ns=11,queue_limit@1=10"),
            kOk);
  int count = 0;
  EXPECT_EQ(cuDeviceGetCount(&count), kOk);
  EXPECT_EQ(count, 2);
  const swsim_device_config got = config(0);
  EXPECT_EQ(got.memory_bytes, 1u);
  EXPECT_EQ(got.d2h_bytes_per_s, 2u);
  EXPECT_EQ(got.h2d_bytes_per_s, 3u);
  EXPECT_EQ(got.d2d_bytes_per_s, 4u);
  EXPECT_EQ(got.pageable_bytes_per_s, 5u);
  EXPECT_EQ(got.copy_latency_ns, 6u);
  EXPECT_EQ(got.numa_node, -1);
  EXPECT_EQ(got.copy_priorities, 1);
  EXPECT_EQ(got.queue_limit, 9u);
  EXPECT_EQ(got.host_latency_ns, 11u);
  EXPECT_EQ(config(1).queue_limit, 10u);
}

TEST_F(SimEnvironment, IsReadBeforeTheFirstCallAndAppliesToConfiguredDevices) {
  ::setenv("SWSIM_CONFIG", "copy_latency_ns=6,fail_call=cuInit:1:999", 1);
  EXPECT_EQ(swsim_configure(2), 0);
  EXPECT_EQ(config(1).copy_latency_ns, 6u);
  EXPECT_EQ(cuInit(0), CUresult::kUnknown);
  EXPECT_EQ(cuInit(0), kOk);
}

TEST_F(SimEnvironment, LeavesAsMuchMemoryAsItSays) {
  ASSERT_EQ(init("leave_bytes=4096,memory_bytes=1048576"), kOk);
  use();
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  EXPECT_EQ(cuMemGetInfo_v2(&free_bytes, &total_bytes), kOk);
  EXPECT_EQ(free_bytes, 4096u);
  EXPECT_EQ(total_bytes, 1048576u);
}

TEST_F(SimEnvironment, FailsCalls) {
  ASSERT_EQ(init("fail_call=cuEventCreate:2:2:1,fail_call=cuMemAlloc_v2:1:2"), kOk);
  use();
  CUdeviceptr address = 0;
  EXPECT_EQ(cuMemAlloc_v2(&address, 64), CUresult::kOutOfMemory);
  CUevent made = nullptr;
  EXPECT_EQ(cuEventCreate(&made, 0), kOk);
  EXPECT_EQ(cuEventDestroy_v2(made), kOk);
  EXPECT_EQ(cuEventCreate(&made, 0), CUresult::kOutOfMemory);
  EXPECT_EQ(cuCtxSynchronize(), CUresult::kOutOfMemory);  // sticky
}

TEST_F(SimEnvironment, LosesADevice) {
  ASSERT_EQ(init("lose_device=1"), kOk);
  use();
  EXPECT_EQ(cuCtxSynchronize(), CUresult::kUnknown);
}

TEST_F(SimEnvironment, WrongTextFailsCuInitAndSaysWhy) {
  EXPECT_EQ(complaint("d2h_bytes_per_second=5").substr(0, 60),
            "swsim: SWSIM_CONFIG: unknown key 'd2h_bytes_per_second'; the");
  EXPECT_EQ(complaint("stall"), "swsim: SWSIM_CONFIG: 'stall' is not key=value\n");
  EXPECT_EQ(complaint("stall=maybe"),
            "swsim: SWSIM_CONFIG: 'maybe' is not a value of stall; write off, on or halfway\n");
  EXPECT_EQ(complaint("memory_bytes=8GB"),
            "swsim: SWSIM_CONFIG: '8GB' is not a value of memory_bytes; write a whole number, without a unit\n");
  EXPECT_EQ(complaint("queue_limit@7=1"), "swsim: SWSIM_CONFIG: there is no device 7\n");
  for (const char* text : {"fail_call=cuInit", "fail_call=cuInit:0:2", "fail_call=cuInit:1:2:3", "fail_copy=1",
                           "devices=0", "broken=everything", "lose_device=yes", "flip_copies=", "stall@x=on",
                           "broken@0=ignore_waits", "driver_lock=2", "register_cost=1:2:3", "event_cost=x"}) {
    EXPECT_NE(complaint(text), "") << text;
  }
  EXPECT_EQ(init(""), kOk);
}

using SimSettings = SimTest;

TEST_F(SimSettings, ChangeARunningDriver) {
  const CUdeviceptr tensor = allocate(4096, 7);
  Pinned host(4096);
  CUstream copies = stream();
  ASSERT_EQ(swsim_set("stall=on,flip_copies=1,broken=ignore_waits+wrong_batches"), 0);
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(host.data(), tensor, 4096, copies), kOk);
  EXPECT_EQ(cuStreamQuery(copies), CUresult::kNotReady);
  CUstream second = stream();
  EXPECT_EQ(cuStreamWaitEvent(second, recorded(copies), 0), kOk);
  EXPECT_EQ(cuStreamQuery(second), kOk);
  ASSERT_EQ(swsim_set("stall=off,flip_copies=0,broken=nothing,fail_copy=2:700"), 0);
  EXPECT_EQ(cuStreamSynchronize(copies), kOk);
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(host.data(), tensor, 4096, copies), kOk);
  EXPECT_EQ(cuStreamSynchronize(copies), CUresult::kIllegalAddress);
}

TEST_F(SimSettings, AreAllOrNothing) {
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(swsim_set("queue_limit=3,speed=4"), code_of(CUresult::kInvalidValue));
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("unknown key 'speed'"), std::string::npos);
  EXPECT_EQ(swsim_set("queue_limit=3,queue_limit@2=4"), code_of(CUresult::kInvalidDevice));
  EXPECT_EQ(swsim_set("devices=3"), code_of(CUresult::kNotPermitted));
  swsim_device_config config{};
  ASSERT_EQ(swsim_get_config(0, &config), 0);
  EXPECT_EQ(config.queue_limit, 1024u);
}

}  // namespace
}  // namespace slackwater::cuda::test
