#include <thread>

#include "unit/sim/sim_fixture.hpp"

namespace slackwater::cuda::test {
namespace {

using SimFault = SimTest;

TEST_F(SimFault, NthCallFailsOnce) {
  swsim_fail_call("cuEventCreate", 2, code_of(CUresult::kOutOfMemory), 0);
  CUevent made = nullptr;
  event();
  EXPECT_EQ(cuEventCreate(&made, 0), CUresult::kOutOfMemory);
  EXPECT_EQ(made, nullptr);
  event();
  EXPECT_EQ(counts().events, 2u);
}

TEST_F(SimFault, StickyFailureFailsEveryLaterCallOnThatContext) {
  CUstream work = stream();
  swsim_fail_call("cuStreamQuery", 1, code_of(CUresult::kEccUncorrectable), 1);
  EXPECT_EQ(cuStreamQuery(work), CUresult::kEccUncorrectable);
  CUevent made = nullptr;
  EXPECT_EQ(cuEventCreate(&made, 0), CUresult::kEccUncorrectable);
  EXPECT_EQ(cuStreamSynchronize(work), CUresult::kEccUncorrectable);
  use(1);
  EXPECT_EQ(cuStreamSynchronize(stream()), kOk);
}

TEST_F(SimFault, FailedCopyComesOutLaterAndSticks) {
  const CUdeviceptr tensor = allocate(4096, 1);
  Pinned host(4096);
  CUstream copies = stream();
  CUevent behind = event();
  ASSERT_EQ(swsim_fail_copy(0, 2, code_of(CUresult::kIllegalAddress)), 0);
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(host.data(), tensor, 4096, copies), kOk);
  EXPECT_EQ(cuStreamSynchronize(copies), kOk);
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(host.data(), tensor, 4096, copies), kOk);
  (void)cuEventRecord(behind, copies);  // the copy may have failed by now
  EXPECT_EQ(cuStreamSynchronize(copies), CUresult::kIllegalAddress);
  EXPECT_EQ(cuEventQuery(behind), CUresult::kIllegalAddress);
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(host.data(), tensor, 4096, copies), CUresult::kIllegalAddress);
  EXPECT_EQ(engine(0, SWSIM_D2H).bytes, 4096u);
}

TEST_F(SimFault, FailedCopyBreaksOffHalfway) {
  const CUdeviceptr tensor = allocate(4096, 1);
  Pinned host(4096);
  CUstream copies = stream();
  ASSERT_EQ(swsim_fail_copy(0, 1, code_of(CUresult::kUnknown)), 0);
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(host.data(), tensor, 4096, copies), kOk);
  EXPECT_EQ(cuStreamSynchronize(copies), CUresult::kUnknown);
  EXPECT_EQ(host[0], 1);
  EXPECT_EQ(host[4095], 0);
}

TEST_F(SimFault, KernelOutOfBoundsFailsTheContextWhenItRuns) {
  const CUdeviceptr tensor = allocate(4096);
  CUstream work = stream();
  EXPECT_EQ(swsim_launch_fill(work, tensor + 4000, 1000, 1, 0), 0);
  EXPECT_EQ(cuStreamSynchronize(work), CUresult::kIllegalAddress);
  EXPECT_EQ(cuCtxSynchronize(), CUresult::kIllegalAddress);
}

TEST_F(SimFault, StalledCopiesWaitAndThenArrive) {
  const CUdeviceptr tensor = allocate(4096, 6);
  Pinned host(4096);
  CUstream copies = stream();
  ASSERT_EQ(swsim_stall_copies(0, SWSIM_STALL_ON), 0);
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(host.data(), tensor, 4096, copies), kOk);
  CUstream compute = stream();
  EXPECT_EQ(swsim_launch_delay(compute, kMs), 0);
  EXPECT_EQ(cuStreamSynchronize(compute), kOk);  // compute goes on
  EXPECT_EQ(cuStreamQuery(copies), CUresult::kNotReady);
  ASSERT_EQ(swsim_stall_copies(0, SWSIM_STALL_OFF), 0);
  EXPECT_EQ(cuStreamSynchronize(copies), kOk);
  EXPECT_EQ(host[4095], 6);
}

TEST_F(SimFault, LostDeviceEndsEveryWait) {
  const CUdeviceptr tensor = allocate(4096);
  Pinned host(4096);
  CUstream copies = stream();
  CUstream compute = stream();
  ASSERT_EQ(swsim_stall_copies(0, SWSIM_STALL_HALFWAY), 0);
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(host.data(), tensor, 4096, copies), kOk);
  EXPECT_EQ(swsim_launch_delay(compute, 3'600'000 * kMs), 0);
  CUevent end_copies = recorded(copies);
  CUevent end_compute = recorded(compute);
  use(1);
  CUstream across = stream();
  EXPECT_EQ(cuStreamWaitEvent(across, end_copies, 0), kOk);
  use(0);
  ASSERT_EQ(swsim_wait_begun(0, SWSIM_D2H, 1), 0);

  std::thread waiting([&] {
    EXPECT_EQ(cuCtxSetCurrent(contexts_[1]), kOk);
    EXPECT_EQ(cuEventSynchronize(end_copies), CUresult::kUnknown);
    EXPECT_EQ(cuEventSynchronize(end_compute), CUresult::kUnknown);
  });
  ASSERT_EQ(swsim_lose_device(0), 0);
  waiting.join();
  EXPECT_EQ(cuStreamQuery(copies), CUresult::kUnknown);
  use(1);
  EXPECT_EQ(cuStreamSynchronize(across), kOk);  // the other device is well
  EXPECT_EQ(swsim_wait_begun(0, SWSIM_D2H, 2), code_of(CUresult::kNotReady));
}

TEST_F(SimFault, FailedContextStillGivesThingsBack) {
  CUstream doomed = nullptr;
  CUdeviceptr address = 0;
  ASSERT_EQ(cuStreamCreateWithPriority(&doomed, 0, 0), kOk);
  ASSERT_EQ(cuMemAlloc_v2(&address, 64), kOk);
  slackwater::test::AlignedBuffer host(4096);
  ASSERT_EQ(cuMemHostRegister_v2(host.data(), 4096, 0), kOk);
  ASSERT_EQ(swsim_lose_device(0), 0);
  EXPECT_EQ(cuStreamDestroy_v2(doomed), CUresult::kUnknown);
  EXPECT_EQ(cuMemFree_v2(address), CUresult::kUnknown);
  EXPECT_EQ(cuMemHostUnregister(host.data()), CUresult::kUnknown);
  EXPECT_EQ(counts().streams, 0u);
  EXPECT_EQ(counts().allocations, 0u);
  EXPECT_EQ(counts().registrations, 0u);
}

TEST_F(SimFault, NewContextStartsWithoutTheError) {
  ASSERT_EQ(swsim_lose_device(0), 0);
  EXPECT_EQ(cuCtxSynchronize(), CUresult::kUnknown);
  ASSERT_EQ(cuDevicePrimaryCtxRelease_v2(0), kOk);
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&contexts_[0], 0), kOk);
  use(0);
  EXPECT_EQ(cuCtxSynchronize(), kOk);
}

}  // namespace
}  // namespace slackwater::cuda::test
