// Device memory that is taken away although copies of it are pending.
#include "unit/sim/sim_fixture.hpp"

namespace slackwater::cuda::test {
namespace {

class SimMemoryGone : public SimTest {
 protected:
  // A copy to the host that has been queued, but has not begun. stall_copies(OFF) lets it go.
  CUstream pending_copy(const Pinned& host, CUdeviceptr tensor) {
    CUstream copies = stream();
    EXPECT_EQ(swsim_stall_copies(0, SWSIM_STALL_ON), 0);
    EXPECT_EQ(cuMemcpyDtoHAsync_v2(host.data(), tensor, host.size(), copies), kOk);
    return copies;
  }
  static void let_go() { EXPECT_EQ(swsim_stall_copies(0, SWSIM_STALL_OFF), 0); }
};

TEST_F(SimMemoryGone, FreeWaitsForPendingCopies) {
  CUdeviceptr tensor = 0;
  ASSERT_EQ(cuMemAlloc_v2(&tensor, 4096), kOk);
  const std::vector<std::uint8_t> bytes(4096, 7);
  ASSERT_EQ(swsim_write(tensor, bytes.data(), 4096), 0);
  Pinned host(4096);
  pending_copy(host, tensor);
  const std::jthread opens = once([] { return counts().host_waits > 0; }, let_go);
  EXPECT_EQ(cuMemFree_v2(tensor), kOk);
  EXPECT_EQ(engine(0, SWSIM_D2H).copies, 1u);
  EXPECT_EQ(host[4095], 7);
}

TEST_F(SimMemoryGone, UnmappedBeforeTheCopyFailsTheContext) {
  const CUdeviceptr tensor = allocate(4096, 7);
  Pinned host(4096);
  CUstream copies = pending_copy(host, tensor);
  ASSERT_EQ(swsim_unmap(tensor), 0);
  EXPECT_EQ(cuStreamQuery(copies), CUresult::kNotReady);  // nobody has noticed yet
  let_go();
  EXPECT_EQ(cuStreamSynchronize(copies), CUresult::kIllegalAddress);
  CUevent made = nullptr;
  EXPECT_EQ(cuEventCreate(&made, 0), CUresult::kIllegalAddress);  // sticky
  EXPECT_EQ(host[0], 0);
  use(1);
  EXPECT_EQ(cuCtxSynchronize(), kOk);
}

TEST_F(SimMemoryGone, TinyCopyOfUnmappedMemoryFailsToo) {
  const CUdeviceptr tensor = allocate(64, 7);
  Pinned host(64);
  CUstream copies = pending_copy(host, tensor);
  ASSERT_EQ(swsim_unmap(tensor), 0);
  let_go();
  EXPECT_EQ(cuStreamSynchronize(copies), CUresult::kIllegalAddress);
}

TEST_F(SimMemoryGone, UnmappedInTheMiddleOfTheCopyFailsTheContext) {
  const CUdeviceptr tensor = allocate(4096, 7);
  Pinned host(4096);
  CUstream copies = stream();
  ASSERT_EQ(swsim_stall_copies(0, SWSIM_STALL_HALFWAY), 0);
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(host.data(), tensor, 4096, copies), kOk);
  ASSERT_EQ(swsim_wait_begun(0, SWSIM_D2H, 1), 0);
  ASSERT_EQ(swsim_unmap(tensor), 0);
  let_go();
  EXPECT_EQ(cuStreamSynchronize(copies), CUresult::kIllegalAddress);
  EXPECT_EQ(host[0], 7);
  EXPECT_EQ(host[4095], 0);
  EXPECT_EQ(engine(0, SWSIM_D2H).bytes, 0u);
}

TEST_F(SimMemoryGone, CopyIntoUnmappedMemoryFailsTheContext) {
  const CUdeviceptr tensor = allocate(4096);
  Pinned host(4096);
  CUstream copies = stream();
  ASSERT_EQ(swsim_stall_copies(0, SWSIM_STALL_ON), 0);
  EXPECT_EQ(cuMemcpyHtoDAsync_v2(tensor, host.data(), 4096, copies), kOk);
  ASSERT_EQ(swsim_unmap(tensor), 0);
  let_go();
  EXPECT_EQ(cuStreamSynchronize(copies), CUresult::kIllegalAddress);
}

TEST_F(SimMemoryGone, KernelOnUnmappedMemoryFailsTheContext) {
  const CUdeviceptr tensor = allocate(4096);
  CUstream work = stream();
  Gate gate(*this, work);
  EXPECT_EQ(swsim_launch_fill(work, tensor, 4096, 1, 0), 0);
  ASSERT_EQ(swsim_unmap(tensor), 0);
  gate.open();
  EXPECT_EQ(cuStreamSynchronize(work), CUresult::kIllegalAddress);
}

TEST_F(SimMemoryGone, CopyInsideTheDeviceFailsTheContext) {
  const CUdeviceptr from = allocate(4096);
  const CUdeviceptr to = allocate(4096);
  CUstream work = stream();
  Gate gate(*this, work);
  EXPECT_EQ(cuMemcpyDtoDAsync_v2(to, from, 4096, work), kOk);
  ASSERT_EQ(swsim_unmap(to), 0);
  gate.open();
  EXPECT_EQ(cuStreamSynchronize(work), CUresult::kIllegalAddress);
}

TEST_F(SimMemoryGone, NewCallsAreRefusedAndTheMemoryIsFree) {
  const CUdeviceptr tensor = allocate(4096, 7);
  Pinned host(4096);
  CUstream copies = stream();
  ASSERT_EQ(swsim_unmap(tensor), 0);
  EXPECT_EQ(swsim_unmap(tensor), code_of(CUresult::kInvalidValue));
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(host.data(), tensor, 4096, copies), CUresult::kInvalidValue);
  unsigned type = 0;
  EXPECT_EQ(cuPointerGetAttribute(&type, CUpointer_attribute::kMemoryType, tensor), CUresult::kInvalidValue);
  std::uint8_t byte = 0;
  EXPECT_EQ(swsim_read(&byte, tensor, 1), code_of(CUresult::kIllegalAddress));
  EXPECT_EQ(counts().device_bytes, 0u);
  EXPECT_EQ(counts().allocations, 1u);

  ASSERT_EQ(swsim_take_memory(0, 4095), 0);
  EXPECT_EQ(swsim_map(tensor), code_of(CUresult::kOutOfMemory));
  ASSERT_EQ(swsim_release_memory(0), 0);
  EXPECT_EQ(swsim_map(tensor), 0);
  EXPECT_EQ(swsim_map(tensor), code_of(CUresult::kInvalidValue));
  EXPECT_EQ(device_bytes(tensor, 4096)[4095], 0);  // new memory
  EXPECT_EQ(swsim_unmap(tensor + 4), code_of(CUresult::kInvalidValue));
  EXPECT_EQ(swsim_map(tensor + 4), code_of(CUresult::kInvalidValue));
}

TEST_F(SimMemoryGone, MemoryThatCameBackGoesUnseen) {
  const CUdeviceptr tensor = allocate(4096, 7);
  Pinned host(4096);
  CUstream copies = pending_copy(host, tensor);
  ASSERT_EQ(swsim_unmap(tensor), 0);
  ASSERT_EQ(swsim_map(tensor), 0);
  let_go();
  EXPECT_EQ(cuStreamSynchronize(copies), kOk);
  EXPECT_EQ(host[0], 0);  // wrong, and nobody says so
}

TEST_F(SimMemoryGone, ReusedMemoryYieldsTheBytesOfItsNewOwner) {
  CUdeviceptr old_owner = 0;
  ASSERT_EQ(cuMemAlloc_v2(&old_owner, 4096), kOk);
  Pinned host(4096);
  CUstream copies = pending_copy(host, old_owner);
  ASSERT_EQ(swsim_free_for_reuse(old_owner), 0);
  EXPECT_EQ(swsim_free_for_reuse(old_owner), code_of(CUresult::kInvalidValue));
  EXPECT_EQ(counts().allocations, 0u);
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(host.data(), old_owner, 4096, copies), CUresult::kInvalidValue);
  const CUdeviceptr other_size = allocate(8192);
  EXPECT_NE(other_size, old_owner);
  const CUdeviceptr new_owner = allocate(4096, 9);
  EXPECT_EQ(new_owner, old_owner);
  let_go();
  EXPECT_EQ(cuStreamSynchronize(copies), kOk);
  EXPECT_EQ(host[0], 9);
  EXPECT_EQ(host[4095], 9);
}

TEST_F(SimMemoryGone, FreedMemoryThatNobodyTookKeepsItsBytes) {
  CUdeviceptr tensor = 0;
  ASSERT_EQ(cuMemAlloc_v2(&tensor, 4096), kOk);
  const std::vector<std::uint8_t> bytes(4096, 7);
  ASSERT_EQ(swsim_write(tensor, bytes.data(), 4096), 0);
  Pinned host(4096);
  CUstream copies = pending_copy(host, tensor);
  ASSERT_EQ(swsim_free_for_reuse(tensor), 0);
  let_go();
  EXPECT_EQ(cuStreamSynchronize(copies), kOk);
  EXPECT_EQ(host[4095], 7);
}

}  // namespace
}  // namespace slackwater::cuda::test
