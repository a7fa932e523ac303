// Replicas on a device: compared as those in host memory are.
#include <optional>
#include <set>
#include <utility>

#include "capture/replica_digests.hpp"
#include "capture/replica_samples.hpp"
#include "device/devices.hpp"
#include "unit/engine/cuda_fixture.hpp"

namespace slackwater::test {
namespace {

TEST_F(EngineOnCuda, ReplicasOnADeviceHaveTheDigestsOfTheirBytesInHostMemory) {
  const DeviceTensor& tensor = add("w", 3 * kMiB + 17);
  queue_update(100'000'000);  // the digests come behind it
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

// What all ranks see of a state of one group, whose every tensor is a replica.
class ReplicasOnCuda : public EngineOnCuda {
 protected:
  static void share(State& state) {
    for (Tensor& tensor : state.tensors) {
      tensor.shard = Shard{
          .global_shape = tensor.shape, .offset = Shape(tensor.shape.size()), .replica_group = "dp", .replicas = 2};
    }
  }
  State shared_state() {
    State state = EngineOnCuda::state();
    share(state);
    return state;
  }
  static State on_host(State state, const std::map<std::string, Bytes>& bytes) {
    for (Tensor& tensor : state.tensors) {
      tensor.data = bytes.at(tensor.name).data();
      tensor.strides.clear();
      tensor.device = kHostDevice;
    }
    return state;
  }
  PendingReplicaSamples look(const State& state, std::uint64_t step) {
    auto look = ReplicaSampler().sample(state, *devices_, step);
    if (!look) throw std::runtime_error(look.error().to_string());
    return std::move(*look);
  }
  static ReplicaSamples samples(PendingReplicaSamples look) {
    auto samples = look.samples(0);
    if (!samples) throw std::runtime_error(samples.error().to_string());
    return samples->at("dp");
  }
  using Shape = std::vector<std::int64_t>;
  void TearDown() override {
    devices_.reset();
    EngineOnCuda::TearDown();
  }
  std::optional<Devices> devices_{std::in_place, SW_SIM_CUDA_LIBRARY};
};

TEST_F(ReplicasOnCuda, DigestsOfManyReplicasDoNotCostAWaitEach) {
  for (int i = 0; i < 200; ++i) add("t" + std::to_string(i), 4'000 + i);
  add("large", 5 * kMiB + 3);
  const State on_device = shared_state();
  const std::map<std::string, Bytes> twins = expected();
  const std::uint64_t waits = counters().host_waits;
  const auto found = digest_replicas(on_device, *devices_);
  ASSERT_TRUE(found) << found.error().to_string();
  EXPECT_LE(counters().host_waits - waits, 8u);  // for the streams, and for each buffer
  EXPECT_EQ(*found, *digest_replicas(on_host(on_device, twins), *devices_));
}

TEST_F(ReplicasOnCuda, SamplesOnADeviceAreThoseOfTheBytesInHostMemory) {
  add("small", 1000);
  add("large", 3 * kMiB + 17);
  tensors_.push_back({"strided", 0, false, DeviceTensor({nullptr, 4, {300, 200}, {1, 300}}, 9)});
  State on_device = shared_state();
  on_device.tensors[2].dtype = DType::kF32;
  const std::map<std::string, Bytes> twins = expected();
  for (std::uint64_t step = 1; step <= 5; ++step) {
    const ReplicaSamples device = samples(look(on_device, step));
    const ReplicaSamples host = samples(look(on_host(on_device, twins), step));
    EXPECT_EQ(device.all, host.all);
    EXPECT_EQ(device.some, host.some);
    EXPECT_NE(device.list, host.list) << "of many on a device only some are looked at, so they are not compared";
  }
}

TEST_F(ReplicasOnCuda, SamplesAreTakenInTheOrderOfTheStreamAndNobodyWaits) {
  add("small", 1000, 0, true);
  add("large", kMiB);
  const State state = shared_state();
  must(swsim_stall_copies(0, SWSIM_STALL_ON));
  queue_update(50'000'000);
  const auto before = expected();
  PendingReplicaSamples first = look(state, 1);  // at what that update makes, and at nothing later
  queue_update();
  const auto after = expected();
  PendingReplicaSamples second = look(state, 1);
  must(swsim_stall_copies(0, SWSIM_STALL_OFF));
  EXPECT_EQ(samples(std::move(first)).all, samples(look(on_host(state, before), 1)).all);
  EXPECT_EQ(samples(std::move(second)).all, samples(look(on_host(state, after), 1)).all);
  synchronize();
}

TEST_F(ReplicasOnCuda, OfManyTensorsOnADeviceSomeAreLookedAtAndAllInTheirTurn) {
  for (int i = 0; i < 100; ++i) add("t" + std::to_string(i), 256);
  const State state = shared_state();
  std::set<std::string> listed;
  for (std::uint64_t step = 1; step <= 150; ++step) {
    const ReplicaSamples seen = samples(look(state, step));
    EXPECT_EQ(seen.count, kDeviceSamples);
    for (const auto& [name, digest] : seen.some) listed.insert(name);
  }
  EXPECT_EQ(listed.size(), 100u);
}

}  // namespace
}  // namespace slackwater::test
