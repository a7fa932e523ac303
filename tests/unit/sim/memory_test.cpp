#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/unique_fd.hpp"
#include "unit/sim/sim_fixture.hpp"

namespace slackwater::cuda::test {
namespace {

using slackwater::test::AlignedBuffer;
using SimMemory = SimTest;
using SimMemoryDeathTest = SimTest;

TEST_F(SimMemoryDeathTest, HostThatTouchesDeviceMemoryFaults) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const CUdeviceptr address = allocate(4096);
  auto* const touched = reinterpret_cast<volatile std::uint8_t*>(address);
  EXPECT_DEATH((void)touched[100], "");
  EXPECT_DEATH(touched[100] = 1, "");
}

TEST_F(SimMemory, SystemCallsCannotReachDeviceMemory) {
  const CUdeviceptr address = allocate(4096);
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd reader(ends[0]);
  const UniqueFd writer(ends[1]);
  EXPECT_EQ(::write(writer.get(), reinterpret_cast<const void*>(address), 1), -1);
  EXPECT_EQ(errno, EFAULT);
}

TEST_F(SimMemory, DeviceAddressesAreTold) {
  const CUdeviceptr address = allocate(1000);
  const int here = 0;
  EXPECT_EQ(swsim_is_device_address(address), 1);
  EXPECT_EQ(swsim_is_device_address(address + 999), 1);
  EXPECT_EQ(swsim_is_device_address(address + 1000), 0);
  EXPECT_EQ(swsim_is_device_address(reinterpret_cast<std::uint64_t>(&here)), 0);
}

TEST_F(SimMemory, AliasShowsTheSameBytes) {
  const CUdeviceptr address = allocate(4096, 7);
  const auto* const alias = static_cast<const std::uint8_t*>(swsim_device_to_host_alias(address + 10));
  ASSERT_NE(alias, nullptr);
  EXPECT_NE(reinterpret_cast<CUdeviceptr>(alias), address + 10);
  EXPECT_EQ(*alias, 7);
  const std::uint8_t nine = 9;
  ASSERT_EQ(swsim_write(address + 10, &nine, 1), 0);
  EXPECT_EQ(*alias, 9);
  EXPECT_EQ(swsim_device_to_host_alias(reinterpret_cast<std::uint64_t>(&nine)), nullptr);
}

TEST_F(SimMemory, InteriorPointersAreValidAndBoundsAreChecked) {
  const CUdeviceptr address = allocate(1000, 5);
  Pinned host(4096);
  CUstream work = stream();
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(host.data(), address + 900, 100, work), kOk);
  EXPECT_EQ(cuStreamSynchronize(work), kOk);
  EXPECT_EQ(host[99], 5);
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(host.data(), address + 900, 101, work), CUresult::kInvalidValue);
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(host.data(), address - 1, 2, work), CUresult::kInvalidValue);
  EXPECT_EQ(cuMemcpyHtoDAsync_v2(address + 1000, host.data(), 1, work), CUresult::kInvalidValue);
}

TEST_F(SimMemory, DeviceMemoryIsLimited) {
  configure(0, [](swsim_device_config& config) { config.memory_bytes = 10'000; });
  allocate(6'000);
  CUdeviceptr address = 0;
  EXPECT_EQ(cuMemAlloc_v2(&address, 4'001), CUresult::kOutOfMemory);
  std::size_t available = 0;
  std::size_t total = 0;
  EXPECT_EQ(cuMemGetInfo_v2(&available, &total), kOk);
  EXPECT_EQ(available, 4'000u);
  EXPECT_EQ(total, 10'000u);
  EXPECT_EQ(counts().device_bytes, 6'000u);
  use(1);  // the other device has its own
  allocate(6'000);
}

TEST_F(SimMemory, CachingAllocatorThatOwnsTheDeviceLeavesOnlyWhatItIsTold) {
  configure(0, [](swsim_device_config& config) { config.memory_bytes = 1'000'000; });
  allocate(100'000);
  ASSERT_EQ(swsim_take_memory(0, 5'000), 0);
  std::size_t available = 0;
  EXPECT_EQ(cuMemGetInfo_v2(&available, nullptr), kOk);
  EXPECT_EQ(available, 5'000u);
  CUdeviceptr address = 0;
  EXPECT_EQ(cuMemAlloc_v2(&address, 5'001), CUresult::kOutOfMemory);
  EXPECT_EQ(cuMemAlloc_v2(&address, 5'000), kOk);
  CUdeviceptr none = 0;
  EXPECT_EQ(cuMemAlloc_v2(&none, 1), CUresult::kOutOfMemory);
  EXPECT_EQ(cuMemFree_v2(address), kOk);  // what is given back can be had again
  allocate(5'000);
  ASSERT_EQ(swsim_take_memory(0, 0), 0);
  EXPECT_EQ(cuMemAlloc_v2(&none, 1), CUresult::kOutOfMemory);
  EXPECT_EQ(counts().device_bytes, 105'000u);
  ASSERT_EQ(swsim_release_memory(0), 0);
  allocate(895'000);
}

TEST_F(SimMemory, FreedMemoryIsRefused) {
  CUdeviceptr address = 0;
  ASSERT_EQ(cuMemAlloc_v2(&address, 4096), kOk);
  ASSERT_EQ(cuMemFree_v2(address), kOk);
  EXPECT_EQ(cuMemFree_v2(address), CUresult::kInvalidValue);
  CUdeviceptr next = allocate(4096);
  EXPECT_NE(next, address);
  Pinned host(64);
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(host.data(), address, 64, stream()), CUresult::kInvalidValue);
  EXPECT_EQ(cuMemFree_v2(next + 8), CUresult::kInvalidValue);
}

TEST_F(SimMemory, FreeWaitsForTheDevice) {
  CUdeviceptr address = 0;
  ASSERT_EQ(cuMemAlloc_v2(&address, 4096), kOk);
  CUstream work = stream();
  EXPECT_EQ(swsim_launch_fill(work, address, 4096, 1, 5 * kMs), 0);
  EXPECT_EQ(cuMemFree_v2(address), kOk);
  EXPECT_EQ(cuStreamQuery(work), kOk);
}

TEST_F(SimMemory, HostMemoryIsRegisteredInPieces) {
  AlignedBuffer pool(8 * kMiB);
  for (std::size_t piece = 0; piece < 4; ++piece) {
    EXPECT_EQ(cuMemHostRegister_v2(pool.data() + piece * 2 * kMiB, 2 * kMiB, kMemHostRegisterPortable), kOk);
  }
  EXPECT_EQ(counts().registrations, 4u);
  EXPECT_EQ(counts().pinned_bytes, 8 * kMiB);
  EXPECT_EQ(cuMemHostRegister_v2(pool.data() + kMiB, 4096, 0), CUresult::kHostMemoryAlreadyRegistered);
  // Pinning works on whole pages.
  EXPECT_EQ(cuMemHostUnregister(pool.data()), kOk);
  EXPECT_EQ(cuMemHostRegister_v2(pool.data() + 10, 20, 0), kOk);
  EXPECT_EQ(cuMemHostRegister_v2(pool.data() + 100, 20, 0), CUresult::kHostMemoryAlreadyRegistered);
  EXPECT_EQ(cuMemHostUnregister(pool.data()), CUresult::kHostMemoryNotRegistered);
  EXPECT_EQ(cuMemHostUnregister(pool.data() + 10), kOk);
  for (std::size_t piece = 1; piece < 4; ++piece) {
    EXPECT_EQ(cuMemHostUnregister(pool.data() + piece * 2 * kMiB), kOk);
  }
}

TEST_F(SimMemory, MemoryThatIsNotThereIsNotRegistered) {
  // Below every program, where the kernel maps nothing by itself. What was unmapped a moment ago, another thread may
  // have mapped again.
  EXPECT_EQ(cuMemHostRegister_v2(reinterpret_cast<void*>(kMiB), 2 * kMiB, 0), CUresult::kInvalidValue);
  EXPECT_EQ(cuMemHostRegister_v2(reinterpret_cast<void*>(allocate(4096)), 4096, 0), CUresult::kInvalidValue);
  EXPECT_EQ(cuMemHostRegister_v2(nullptr, 4096, 0), CUresult::kInvalidValue);
}

TEST_F(SimMemory, CopyAcrossTwoRegistrationsIsRefused) {
  AlignedBuffer pool(8192);
  ASSERT_EQ(cuMemHostRegister_v2(pool.data(), 4096, kMemHostRegisterPortable), kOk);
  const CUdeviceptr address = allocate(8192);
  CUstream work = stream();
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(pool.data(), address, 8192, work), CUresult::kInvalidValue);
  ASSERT_EQ(cuMemHostRegister_v2(pool.data() + 4096, 4096, kMemHostRegisterPortable), kOk);
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(pool.data() + 4000, address, 200, work), CUresult::kInvalidValue);
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(pool.data() + 4096, address, 4096, work), kOk);
  EXPECT_EQ(cuStreamSynchronize(work), kOk);
  EXPECT_EQ(cuMemHostUnregister(pool.data()), kOk);
  EXPECT_EQ(cuMemHostUnregister(pool.data() + 4096), kOk);
}

TEST_F(SimMemory, UnpinningUnderACopyIsCounted) {
  AlignedBuffer pool(4096);
  ASSERT_EQ(cuMemHostRegister_v2(pool.data(), 4096, 0), kOk);
  const CUdeviceptr address = allocate(4096, 3);
  ASSERT_EQ(swsim_stall_copies(0, SWSIM_STALL_ON), 0);
  ASSERT_EQ(cuMemcpyDtoHAsync_v2(pool.data(), address, 4096, stream()), kOk);
  const auto release = once([] { return counts().unpinned_in_flight > 0; },
                            [] { EXPECT_EQ(swsim_stall_copies(0, SWSIM_STALL_OFF), 0); });
  EXPECT_EQ(cuMemHostUnregister(pool.data()), kOk);
  EXPECT_EQ(counts().unpinned_in_flight, 1u);
  EXPECT_EQ(pool.data()[4095], std::byte{3});
}

TEST_F(SimMemory, PointersAreDescribed) {
  const CUdeviceptr address = allocate(1000);
  CUmemorytype type{};
  int ordinal = -1;
  CUdeviceptr begin = 0;
  std::size_t size_bytes = 0;
  CUcontext context = nullptr;
  EXPECT_EQ(cuPointerGetAttribute(&type, CUpointer_attribute::kMemoryType, address + 5), kOk);
  EXPECT_EQ(type, CUmemorytype::kDevice);
  EXPECT_EQ(cuPointerGetAttribute(&ordinal, CUpointer_attribute::kDeviceOrdinal, address), kOk);
  EXPECT_EQ(ordinal, 0);
  EXPECT_EQ(cuPointerGetAttribute(&begin, CUpointer_attribute::kRangeStartAddr, address + 5), kOk);
  EXPECT_EQ(begin, address);
  EXPECT_EQ(cuPointerGetAttribute(&size_bytes, CUpointer_attribute::kRangeSize, address), kOk);
  EXPECT_EQ(size_bytes, 1000u);
  EXPECT_EQ(cuPointerGetAttribute(&context, CUpointer_attribute::kContext, address), kOk);
  EXPECT_EQ(context, contexts_[0]);

  const Pinned pinned(4096);
  EXPECT_EQ(
      cuPointerGetAttribute(&type, CUpointer_attribute::kMemoryType, reinterpret_cast<CUdeviceptr>(pinned.data() + 1)),
      kOk);
  EXPECT_EQ(type, CUmemorytype::kHost);
  EXPECT_EQ(cuPointerGetAttribute(&type, CUpointer_attribute::kMemoryType, reinterpret_cast<CUdeviceptr>(&type)),
            CUresult::kInvalidValue);
}

}  // namespace
}  // namespace slackwater::cuda::test
