#include <algorithm>
#include <numeric>

#include "unit/sim/sim_fixture.hpp"

namespace slackwater::cuda::test {
namespace {

using SimCopy = SimTest;

bool all_are(const std::uint8_t* bytes, std::size_t count, std::uint8_t value) {
  return std::all_of(bytes, bytes + count, [value](std::uint8_t byte) { return byte == value; });
}

TEST_F(SimCopy, BytesGoThereAndBack) {
  Pinned host(3 * kMiB + 5);
  std::iota(host.data(), host.data() + host.size(), std::uint8_t{1});
  const std::vector<std::uint8_t> sent(host.data(), host.data() + host.size());
  const CUdeviceptr first = allocate(host.size());
  const CUdeviceptr second = allocate(host.size());
  CUstream work = stream();
  EXPECT_EQ(cuMemcpyHtoDAsync_v2(first, host.data(), host.size(), work), kOk);
  EXPECT_EQ(cuMemcpyDtoDAsync_v2(second, first, host.size(), work), kOk);
  EXPECT_EQ(cuStreamSynchronize(work), kOk);
  std::fill_n(host.data(), host.size(), std::uint8_t{0});
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(host.data(), second, host.size(), work), kOk);
  EXPECT_EQ(cuStreamSynchronize(work), kOk);
  EXPECT_TRUE(std::equal(sent.begin(), sent.end(), host.data()));
}

TEST_F(SimCopy, CopyThatDoesNotWaitForItsProducerGetsStaleBytes) {
  const CUdeviceptr tensor = allocate(kMiB, 0x11);
  Pinned stale(kMiB);
  Pinned fresh(kMiB);
  CUstream compute = stream();
  CUstream copies = stream();
  Gate gate(*this, compute);
  EXPECT_EQ(swsim_launch_fill(compute, tensor, kMiB, 0x22, 0), 0);
  CUevent produced = recorded(compute);

  EXPECT_EQ(cuMemcpyDtoHAsync_v2(stale.data(), tensor, kMiB, copies), kOk);
  EXPECT_EQ(cuStreamSynchronize(copies), kOk);
  EXPECT_TRUE(all_are(stale.data(), kMiB, 0x11));

  EXPECT_EQ(cuStreamWaitEvent(copies, produced, 0), kOk);
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(fresh.data(), tensor, kMiB, copies), kOk);
  gate.open();
  EXPECT_EQ(cuStreamSynchronize(copies), kOk);
  EXPECT_TRUE(all_are(fresh.data(), kMiB, 0x22));
}

TEST_F(SimCopy, UpdateThatDoesNotWaitForTheCopyTearsIt) {
  const CUdeviceptr tensor = allocate(kMiB, 0x11);
  Pinned host(kMiB);
  CUstream compute = stream();
  CUstream copies = stream();
  ASSERT_EQ(swsim_stall_copies(0, SWSIM_STALL_HALFWAY), 0);
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(host.data(), tensor, kMiB, copies), kOk);
  ASSERT_EQ(swsim_wait_begun(0, SWSIM_D2H, 1), 0);
  EXPECT_EQ(swsim_launch_fill(compute, tensor, kMiB, 0x22, 0), 0);
  EXPECT_EQ(cuStreamSynchronize(compute), kOk);
  ASSERT_EQ(swsim_stall_copies(0, SWSIM_STALL_OFF), 0);
  EXPECT_EQ(cuStreamSynchronize(copies), kOk);
  EXPECT_TRUE(all_are(host.data(), kMiB / 2, 0x11));
  EXPECT_TRUE(all_are(host.data() + kMiB / 2, kMiB / 2, 0x22));
}

TEST_F(SimCopy, UpdateThatWaitsForTheCopyLeavesItWhole) {
  const CUdeviceptr tensor = allocate(kMiB, 0x11);
  Pinned host(kMiB);
  CUstream compute = stream();
  CUstream copies = stream();
  ASSERT_EQ(swsim_stall_copies(0, SWSIM_STALL_HALFWAY), 0);
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(host.data(), tensor, kMiB, copies), kOk);
  EXPECT_EQ(cuStreamWaitEvent(compute, recorded(copies), 0), kOk);
  EXPECT_EQ(swsim_launch_fill(compute, tensor, kMiB, 0x22, 0), 0);
  ASSERT_EQ(swsim_wait_begun(0, SWSIM_D2H, 1), 0);
  EXPECT_EQ(cuStreamQuery(compute), CUresult::kNotReady);
  ASSERT_EQ(swsim_stall_copies(0, SWSIM_STALL_OFF), 0);
  EXPECT_EQ(cuStreamSynchronize(compute), kOk);
  EXPECT_TRUE(all_are(host.data(), kMiB, 0x11));
  EXPECT_EQ(device_bytes(tensor, 1)[0], 0x22);
}

TEST_F(SimCopy, PinnedCopiesDoNotHoldTheCallerUp) {
  const CUdeviceptr tensor = allocate(kMiB);
  Pinned host(kMiB);
  CUstream copies = stream();
  ASSERT_EQ(swsim_stall_copies(0, SWSIM_STALL_ON), 0);
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(host.data(), tensor, kMiB, copies), kOk);
  EXPECT_EQ(cuMemcpyHtoDAsync_v2(tensor, host.data(), kMiB, copies), kOk);
  EXPECT_EQ(cuStreamQuery(copies), CUresult::kNotReady);
  EXPECT_EQ(counts().host_waits, 0u);
  EXPECT_EQ(engine(0, SWSIM_D2H).begun, 0u);
  ASSERT_EQ(swsim_stall_copies(0, SWSIM_STALL_OFF), 0);
  EXPECT_EQ(cuStreamSynchronize(copies), kOk);
}

TEST_F(SimCopy, PageableCopyToTheHostIsOverWhenTheCallReturns) {
  const CUdeviceptr tensor = allocate(kMiB, 0x11);
  std::vector<std::uint8_t> host(kMiB);
  CUstream copies = stream();
  EXPECT_EQ(swsim_launch_fill(copies, tensor, kMiB, 0x22, 2 * kMs), 0);
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(host.data(), tensor, kMiB, copies), kOk);
  EXPECT_TRUE(all_are(host.data(), kMiB, 0x22));
  EXPECT_EQ(counts().host_waits, 1u);
}

TEST_F(SimCopy, PageableSourceMayBeReusedWhenTheCallReturns) {
  const CUdeviceptr tensor = allocate(kMiB);
  std::vector<std::uint8_t> host(kMiB, 0x11);
  CUstream copies = stream();
  ASSERT_EQ(swsim_stall_copies(0, SWSIM_STALL_ON), 0);
  EXPECT_EQ(cuMemcpyHtoDAsync_v2(tensor, host.data(), kMiB, copies), kOk);
  std::ranges::fill(host, std::uint8_t{0x22});
  ASSERT_EQ(swsim_stall_copies(0, SWSIM_STALL_OFF), 0);
  EXPECT_EQ(cuStreamSynchronize(copies), kOk);
  EXPECT_TRUE(all_are(device_bytes(tensor, kMiB).data(), kMiB, 0x11));
}

TEST_F(SimCopy, MemoryRegisteredForOneDeviceIsPageableForTheOther) {
  slackwater::test::AlignedBuffer host(4096);
  ASSERT_EQ(cuMemHostRegister_v2(host.data(), 4096, 0), kOk);
  CUstream here = stream();
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(host.data(), allocate(4096), 4096, here), kOk);
  EXPECT_EQ(cuEventSynchronize(recorded(here)), kOk);
  const std::uint64_t spinning = counts().spinning_waits;
  use(1);
  configure(1, [](swsim_device_config& config) { config.copy_latency_ns = kMs; });
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(host.data(), allocate(4096), 4096, stream()), kOk);
  EXPECT_EQ(counts().spinning_waits, spinning + 1);  // the call itself waited
  use(0);
  EXPECT_EQ(cuMemHostUnregister(host.data()), kOk);
}

TEST_F(SimCopy, CopiesTakeLatencyAndBytesAtTheSetSpeed) {
  configure(0, [](swsim_device_config& config) {
    config.d2h_bytes_per_s = 100 * kMiB;
    config.pageable_bytes_per_s = 50 * kMiB;
    config.copy_latency_ns = 2 * kMs;
  });
  const CUdeviceptr tensor = allocate(kMiB);
  Pinned host(kMiB);
  std::vector<std::uint8_t> pageable(kMiB);
  CUstream copies = stream();
  CUevent begin = recorded(copies);
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(host.data(), tensor, kMiB, copies), kOk);
  CUevent end = recorded(copies);
  EXPECT_EQ(cuEventSynchronize(end), kOk);
  EXPECT_GE(swsim_event_time_ns(end) - swsim_event_time_ns(begin), static_cast<std::int64_t>(12 * kMs));
  EXPECT_EQ(engine(0, SWSIM_D2H).busy_ns, 12 * kMs);
  EXPECT_EQ(engine(0, SWSIM_D2H).bytes, kMiB);
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(pageable.data(), tensor, kMiB, copies), kOk);
  EXPECT_EQ(engine(0, SWSIM_D2H).busy_ns, (12 + 22) * kMs);
  EXPECT_EQ(engine(0, SWSIM_H2D).busy_ns, 0u);
}

TEST_F(SimCopy, CopiesOfOneDirectionFollowEachOtherAndDirectionsOverlap) {
  configure(0, [](swsim_device_config& config) { config.copy_latency_ns = 10 * kMs; });
  const CUdeviceptr tensor = allocate(4096);
  Pinned host(3 * 4096);
  CUstream a = stream();
  CUstream b = stream();
  CUstream back = stream();
  ASSERT_EQ(swsim_stall_copies(0, SWSIM_STALL_ON), 0);
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(host.data(), tensor, 4096, a), kOk);
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(host.data() + 4096, tensor, 4096, b), kOk);
  EXPECT_EQ(cuMemcpyHtoDAsync_v2(tensor, host.data() + 8192, 4096, back), kOk);
  CUevent end_a = recorded(a);
  CUevent end_b = recorded(b);
  CUevent end_back = recorded(back);
  ASSERT_EQ(swsim_stall_copies(0, SWSIM_STALL_OFF), 0);
  EXPECT_EQ(cuCtxSynchronize(), kOk);
  // Uses simulated time, which does not depend on how busy this machine is.
  EXPECT_EQ(swsim_event_time_ns(end_b) - swsim_event_time_ns(end_a), static_cast<std::int64_t>(10 * kMs));
  EXPECT_EQ(swsim_event_time_ns(end_back), swsim_event_time_ns(end_a));
}

TEST_F(SimCopy, OneStreamIsServedBackToBackWhateverThePriorities) {
  configure(0, [](swsim_device_config& config) { config.copy_latency_ns = kMs; });
  const CUdeviceptr tensor = allocate(4096);
  Pinned host(4 * 4096);
  CUstream backlog = stream(kStreamNonBlocking, 0);
  CUstream urgent = stream(kStreamNonBlocking, -5);
  ASSERT_EQ(swsim_stall_copies(0, SWSIM_STALL_ON), 0);
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(host.data(), tensor, 4096, backlog), kOk);
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(host.data() + 3 * 4096, tensor, 4096, urgent), kOk);
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(host.data() + 4096, tensor, 4096, backlog), kOk);
  (void)recorded(backlog);  // a marker between copies changes nothing
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(host.data() + 2 * 4096, tensor, 4096, backlog), kOk);
  CUevent end_backlog = recorded(backlog);
  CUevent end_urgent = recorded(urgent);
  ASSERT_EQ(swsim_stall_copies(0, SWSIM_STALL_OFF), 0);
  EXPECT_EQ(cuCtxSynchronize(), kOk);
  EXPECT_EQ(swsim_event_time_ns(end_urgent) - swsim_event_time_ns(end_backlog), static_cast<std::int64_t>(kMs));
}

TEST_F(SimCopy, HigherPriorityGetsTheCopyEngineFirstIfConfigured) {
  configure(0, [](swsim_device_config& config) {
    config.copy_latency_ns = kMs;
    config.copy_priorities = 1;
  });
  const CUdeviceptr tensor = allocate(4096);
  Pinned host(2 * 4096);
  CUstream low = stream(kStreamNonBlocking, 0);
  CUstream high = stream(kStreamNonBlocking, -1);
  ASSERT_EQ(swsim_stall_copies(0, SWSIM_STALL_ON), 0);
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(host.data(), tensor, 4096, low), kOk);
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(host.data() + 4096, tensor, 4096, high), kOk);
  CUevent end_low = recorded(low);
  CUevent end_high = recorded(high);
  ASSERT_EQ(swsim_stall_copies(0, SWSIM_STALL_OFF), 0);
  EXPECT_EQ(cuCtxSynchronize(), kOk);
  EXPECT_LT(swsim_event_time_ns(end_high), swsim_event_time_ns(end_low));
}

TEST_F(SimCopy, RowsAreCopiedBothWaysAndWithinTheDevice) {
  constexpr std::size_t kWidth = 300, kHeight = 7, kPitch = 512;
  const CUdeviceptr tensor = allocate(kPitch * kHeight);
  const CUdeviceptr packed = allocate(kWidth * kHeight);
  Pinned host(kWidth * kHeight);
  std::iota(host.data(), host.data() + host.size(), std::uint8_t{0});
  const std::vector<std::uint8_t> sent(host.data(), host.data() + host.size());
  CUstream work = stream();

  CUDA_MEMCPY2D_v2 copy{};
  copy.srcMemoryType = CUmemorytype::kHost;
  copy.srcHost = host.data();
  copy.srcPitch = kWidth;
  copy.dstMemoryType = CUmemorytype::kDevice;
  copy.dstDevice = tensor;
  copy.dstPitch = kPitch;
  copy.dstXInBytes = 100;
  copy.WidthInBytes = kWidth;
  copy.Height = kHeight;
  EXPECT_EQ(cuMemcpy2DAsync_v2(&copy, work), kOk);

  CUDA_MEMCPY2D_v2 within{};
  within.srcMemoryType = CUmemorytype::kDevice;
  within.srcDevice = tensor;
  within.srcPitch = kPitch;
  within.srcXInBytes = 100;
  within.dstMemoryType = CUmemorytype::kDevice;
  within.dstDevice = packed;
  within.dstPitch = kWidth;
  within.WidthInBytes = kWidth;
  within.Height = kHeight;
  EXPECT_EQ(cuMemcpy2DAsync_v2(&within, work), kOk);
  EXPECT_EQ(cuStreamSynchronize(work), kOk);
  EXPECT_EQ(device_bytes(packed, sent.size()), sent);
  EXPECT_EQ(device_bytes(tensor, kPitch * kHeight)[99], 0);

  std::fill_n(host.data(), host.size(), std::uint8_t{0});
  CUDA_MEMCPY2D_v2 back = within;
  back.dstMemoryType = CUmemorytype::kHost;
  back.dstHost = host.data();
  EXPECT_EQ(cuMemcpy2DAsync_v2(&back, work), kOk);
  EXPECT_EQ(cuStreamSynchronize(work), kOk);
  EXPECT_TRUE(std::equal(sent.begin(), sent.end(), host.data()));

  back.srcPitch = kWidth;  // shorter than offset and width
  EXPECT_EQ(cuMemcpy2DAsync_v2(&back, work), CUresult::kInvalidValue);
  back = within;
  back.Height = kHeight + 1;
  EXPECT_EQ(cuMemcpy2DAsync_v2(&back, work), CUresult::kInvalidValue);
}

TEST_F(SimCopy, DevicesCopyToEachOther) {
  const CUdeviceptr here = allocate(kMiB, 0x33);
  CUstream work = stream();
  use(1);
  const CUdeviceptr there = allocate(kMiB);
  use(0);
  EXPECT_EQ(cuMemcpyDtoDAsync_v2(there, here, kMiB, work), kOk);
  EXPECT_EQ(cuStreamSynchronize(work), kOk);
  EXPECT_TRUE(all_are(device_bytes(there, kMiB).data(), kMiB, 0x33));
}

TEST_F(SimCopy, MemoryOfAnotherDeviceIsRefusedOnThisStream) {
  const CUdeviceptr here = allocate(4096);
  Pinned host(4096);
  use(1);
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(host.data(), here, 4096, stream()), CUresult::kInvalidValue);
}

TEST_F(SimCopy, NothingIsCopiedWithoutComplaint) {
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(nullptr, 0, 0, stream()), kOk);
  EXPECT_EQ(engine(0, SWSIM_D2H).begun, 0u);
}

class SimBatch : public SimTest {
 protected:
  CUresult copy(CUstream on, std::size_t count, std::size_t* failed = nullptr) {
    return cuMemcpyBatchAsync(to_.data(), from_.data(), sizes_.data(), count, attributes_.data(), first_.data(),
                              attributes_.size(), failed, on);
  }
  void add(CUdeviceptr to, CUdeviceptr from, std::size_t size_bytes) {
    to_.push_back(to);
    from_.push_back(from);
    sizes_.push_back(size_bytes);
  }

  std::vector<CUdeviceptr> to_;
  std::vector<CUdeviceptr> from_;
  std::vector<std::size_t> sizes_;
  std::vector<CUmemcpyAttributes> attributes_{{.srcAccessOrder = CUmemcpySrcAccessOrder::kStream}};
  std::vector<std::size_t> first_{0};
};

TEST_F(SimBatch, CopiesEveryPieceInStreamOrder) {
  constexpr std::size_t kCount = 20, kBytes = 1000;
  configure(0, [](swsim_device_config& config) { config.copy_latency_ns = kMs; });
  const CUdeviceptr tensor = allocate(kCount * kBytes);
  Pinned host(kCount * kBytes);
  CUstream work = stream();
  EXPECT_EQ(swsim_launch_fill(work, tensor, kCount * kBytes, 0x44, kMs), 0);
  const auto address = reinterpret_cast<CUdeviceptr>(host.data());
  for (std::size_t piece = 0; piece < kCount; ++piece) add(address + piece * kBytes, tensor + piece * kBytes, kBytes);
  EXPECT_EQ(cuMemcpyBatchAsync_v2(to_.data(), from_.data(), sizes_.data(), kCount, attributes_.data(), first_.data(), 1,
                                  work),
            kOk);
  EXPECT_EQ(swsim_launch_fill(work, tensor, kCount * kBytes, 0x55, 0), 0);
  EXPECT_EQ(cuStreamSynchronize(work), kOk);
  EXPECT_TRUE(all_are(host.data(), host.size(), 0x44));
  EXPECT_EQ(engine(0, SWSIM_D2H).copies, 1u);
  EXPECT_EQ(engine(0, SWSIM_D2H).busy_ns, kMs);  // one latency for all
}

TEST_F(SimBatch, PiecesGoInAnyOrder) {
  constexpr std::size_t kCount = 16;
  const CUdeviceptr tensor = allocate(kCount);
  std::vector<std::uint8_t> names(kCount);
  std::iota(names.begin(), names.end(), std::uint8_t{0});
  ASSERT_EQ(swsim_write(tensor, names.data(), kCount), 0);
  Pinned host(1);
  // All copies go to the same address, so the bytes there come from the last one.
  for (std::size_t piece = 0; piece < kCount; ++piece)
    add(reinterpret_cast<CUdeviceptr>(host.data()), tensor + piece, 1);
  CUstream work = stream();
  bool shuffled = false;
  for (int round = 0; round < 20; ++round) {
    ASSERT_EQ(copy(work, kCount), kOk);
    ASSERT_EQ(cuStreamSynchronize(work), kOk);
    shuffled |= host[0] != kCount - 1;
  }
  EXPECT_TRUE(shuffled);
}

TEST_F(SimBatch, BothDirectionsInOneBatch) {
  const CUdeviceptr first = allocate(4096, 1);
  const CUdeviceptr second = allocate(4096, 2);
  const CUdeviceptr third = allocate(4096, 3);
  Pinned host(8192);
  std::fill_n(host.data(), 8192, std::uint8_t{9});
  const auto address = reinterpret_cast<CUdeviceptr>(host.data());
  add(address, first, 4096);
  add(second, address + 4096, 4096);
  add(third, first, 4096);
  CUstream work = stream();
  ASSERT_EQ(copy(work, 3), kOk);
  ASSERT_EQ(cuStreamSynchronize(work), kOk);
  EXPECT_TRUE(all_are(host.data(), 4096, 1));
  EXPECT_TRUE(all_are(device_bytes(second, 4096).data(), 4096, 9));
  EXPECT_TRUE(all_are(device_bytes(third, 4096).data(), 4096, 1));
}

TEST_F(SimBatch, RefusesTheDefaultStreamAndOtherAccessOrders) {
  Pinned host(4096);
  add(reinterpret_cast<CUdeviceptr>(host.data()), allocate(4096), 4096);
  EXPECT_EQ(copy(nullptr, 1), CUresult::kInvalidValue);
  EXPECT_EQ(copy(reinterpret_cast<CUstream>(kStreamLegacy), 1), CUresult::kInvalidValue);
  CUstream work = stream();
  attributes_[0].srcAccessOrder = CUmemcpySrcAccessOrder::kAny;
  EXPECT_EQ(copy(work, 1), CUresult::kInvalidValue);
  attributes_[0].srcAccessOrder = CUmemcpySrcAccessOrder::kInvalid;
  EXPECT_EQ(copy(work, 1), CUresult::kInvalidValue);
  attributes_[0].srcAccessOrder = CUmemcpySrcAccessOrder::kStream;
  first_[0] = 1;
  EXPECT_EQ(copy(work, 1), CUresult::kInvalidValue);
  EXPECT_EQ(engine(0, SWSIM_D2H).begun, 0u);
}

TEST_F(SimBatch, NamesTheCopyItRefusesAndMakesNone) {
  Pinned host(4096);
  const auto address = reinterpret_cast<CUdeviceptr>(host.data());
  const CUdeviceptr tensor = allocate(4096);
  add(address, tensor, 100);
  add(address + 100, tensor + 4000, 100);
  std::size_t failed = 77;
  CUstream work = stream();
  EXPECT_EQ(copy(work, 2, &failed), CUresult::kInvalidValue);
  EXPECT_EQ(failed, 1u);
  EXPECT_EQ(copy(nullptr, 2, &failed), CUresult::kInvalidValue);
  EXPECT_EQ(failed, static_cast<std::size_t>(-1));
  EXPECT_EQ(cuStreamSynchronize(work), kOk);
  EXPECT_EQ(engine(0, SWSIM_D2H).begun, 0u);
}

}  // namespace
}  // namespace slackwater::cuda::test
