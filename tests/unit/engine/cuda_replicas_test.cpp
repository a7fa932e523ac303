// Replicas on a device: compared as those in host memory are.
#include "device/devices.hpp"
#include "engine/replica_digests.hpp"
#include "unit/engine/cuda_fixture.hpp"

namespace slackwater::test {
namespace {

TEST_F(EngineOnCuda, ReplicasOnADeviceHaveTheDigestsOfTheirBytesInHostMemory) {
  const DeviceTensor& tensor = add("w", 3 * kMiB + 17);
  queue_update();  // the digests come behind it
  State on_device = state();
  const Bytes twin = tensor.packed_twin();
  State on_host{
      .tensors = {
          {.name = "w", .dtype = DType::kU8, .shape = {static_cast<std::int64_t>(twin.size())}, .data = twin.data()}}};
  for (State* each : {&on_device, &on_host}) {
    Tensor& only = each->tensors[0];
    only.shard = Shard{.global_shape = only.shape, .offset = {0}, .replica_group = "dp", .replica = 0, .replicas = 2};
  }
  Devices devices(SW_SIM_CUDA_LIBRARY);
  const auto device = digest_replicas(on_device, devices);
  const auto host = digest_replicas(on_host, devices);
  ASSERT_TRUE(device) << device.error().to_string();
  ASSERT_TRUE(host) << host.error().to_string();
  EXPECT_EQ(*device, *host);
  EXPECT_EQ(device->at("dp").at(0).first, "w");

  Bytes other = twin;
  other[kMiB] ^= std::byte{1};
  on_host.tensors[0].data = other.data();
  EXPECT_NE(*digest_replicas(on_host, devices), *host);
}

}  // namespace
}  // namespace slackwater::test
