// Drivers and devices that do not do what they say: what a health check must notice.
#include <algorithm>

#include "unit/sim/sim_fixture.hpp"

namespace slackwater::cuda::test {
namespace {

class SimBroken : public SimTest {
 protected:
  static std::size_t wrong_bytes(const Pinned& host, std::uint8_t right) {
    return host.size() - static_cast<std::size_t>(std::count(host.data(), host.data() + host.size(), right));
  }

  // Copies `count` neighbouring pieces to the host in one batch.
  static CUresult batch(CUdeviceptr from, const Pinned& to, std::size_t count, CUstream on) {
    const std::size_t piece = to.size() / count;
    std::vector<CUdeviceptr> targets;
    std::vector<CUdeviceptr> sources;
    std::vector<std::size_t> sizes(count, piece);
    for (std::size_t index = 0; index < count; ++index) {
      targets.push_back(reinterpret_cast<CUdeviceptr>(to.data()) + index * piece);
      sources.push_back(from + index * piece);
    }
    CUmemcpyAttributes attributes{};
    attributes.srcAccessOrder = CUmemcpySrcAccessOrder::kStream;
    std::size_t first = 0;
    std::size_t failed = 0;
    return cuMemcpyBatchAsync(targets.data(), sources.data(), sizes.data(), count, &attributes, &first, 1, &failed, on);
  }
};

TEST_F(SimBroken, IgnoredWaitOrdersNothing) {
  const CUdeviceptr tensor = allocate(4096, 1);
  Pinned host(4096);
  CUstream producer = stream();
  CUstream copies = stream();
  Gate gate(*this, producer);
  swsim_break(SWSIM_IGNORE_WAITS);
  EXPECT_EQ(swsim_launch_fill(producer, tensor, 4096, 2, 0), 0);
  EXPECT_EQ(cuStreamWaitEvent(copies, recorded(producer), 0), kOk);
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(host.data(), tensor, 4096, copies), kOk);
  EXPECT_EQ(cuStreamSynchronize(copies), kOk);  // would not return before the gate opens
  EXPECT_EQ(wrong_bytes(host, 1), 0u);
  gate.open();

  swsim_break(0);
  Gate again(*this, producer);
  EXPECT_EQ(cuStreamWaitEvent(copies, recorded(producer), 0), kOk);
  EXPECT_EQ(cuStreamQuery(copies), CUresult::kNotReady);
  again.open();
}

TEST_F(SimBroken, EveryNthCopyToTheHostDeliversOneWrongByte) {
  const CUdeviceptr tensor = allocate(kMiB, 7);
  Pinned host(kMiB);
  CUstream copies = stream();
  ASSERT_EQ(swsim_flip_copies(0, 3), 0);
  for (const std::size_t wrong : {0u, 0u, 1u, 0u, 0u, 1u}) {
    EXPECT_EQ(cuMemcpyDtoHAsync_v2(host.data(), tensor, kMiB, copies), kOk);
    EXPECT_EQ(cuStreamSynchronize(copies), kOk);
    EXPECT_EQ(wrong_bytes(host, 7), wrong);
    EXPECT_EQ(cuMemcpyHtoDAsync_v2(tensor, host.data(), 1, copies), kOk);  // not counted, never wrong
    EXPECT_EQ(cuStreamSynchronize(copies), kOk);
  }
  ASSERT_EQ(swsim_flip_copies(0, 0), 0);
}

TEST_F(SimBroken, FlippedByteOfA2DCopyLiesInARow) {
  const CUdeviceptr tensor = allocate(4096, 7);
  Pinned host(4096);
  CUstream copies = stream();
  ASSERT_EQ(swsim_flip_copies(0, 1), 0);
  CUDA_MEMCPY2D_v2 rows{};
  rows.srcMemoryType = CUmemorytype::kDevice;
  rows.srcDevice = tensor;
  rows.srcPitch = 64;
  rows.dstMemoryType = CUmemorytype::kHost;
  rows.dstHost = host.data();
  rows.dstPitch = 128;
  rows.WidthInBytes = 64;
  rows.Height = 32;
  EXPECT_EQ(cuMemcpy2DAsync_v2(&rows, copies), kOk);
  EXPECT_EQ(cuStreamSynchronize(copies), kOk);
  std::size_t wrong = 0;
  for (std::size_t index = 0; index < host.size(); ++index) wrong += host[index] != (index % 128 < 64 ? 7 : 0) ? 1 : 0;
  EXPECT_EQ(wrong, 1u);
}

TEST_F(SimBroken, WrongBatchesDoNotAffectSingleCopies) {
  const CUdeviceptr tensor = allocate(kMiB, 7);
  Pinned host(kMiB);
  CUstream copies = stream();
  swsim_break(SWSIM_WRONG_BATCHES);
  EXPECT_EQ(batch(tensor, host, 4, copies), kOk);
  EXPECT_EQ(cuStreamSynchronize(copies), kOk);
  EXPECT_EQ(wrong_bytes(host, 7), 4u);
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(host.data(), tensor, kMiB, copies), kOk);
  EXPECT_EQ(cuStreamSynchronize(copies), kOk);
  EXPECT_EQ(wrong_bytes(host, 7), 0u);
  swsim_break(0);
  EXPECT_EQ(batch(tensor, host, 4, copies), kOk);
  EXPECT_EQ(cuStreamSynchronize(copies), kOk);
  EXPECT_EQ(wrong_bytes(host, 7), 0u);
}

}  // namespace
}  // namespace slackwater::cuda::test
