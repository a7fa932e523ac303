// A GPU whose memory the trainer owns, and host memory that the device is still filling.
#include <span>
#include <string>
#include <vector>

#include "unit/engine/cuda_fixture.hpp"

namespace slackwater::test {
namespace {

class EngineOnFullCuda : public EngineOnCuda {
 protected:
  void TearDown() override {
    free_all();
    EngineOnCuda::TearDown();
  }
  // As torch's caching allocator does: nothing is left, down to the last 4 KiB.
  void take_all(int device = 0) {
    use_device(device);
    swsim_device_config config{};
    must(swsim_get_config(device, &config));
    config.memory_bytes = counters().device_bytes + kMiB;
    must(swsim_set_config(device, &config));
    for (std::uint64_t size = kMiB; size >= 4096;) {
      cuda::CUdeviceptr address = 0;
      if (cuda::cuMemAlloc_v2(&address, size) == cuda::CUresult::kSuccess) {
        taken_.push_back(address);
      } else {
        size /= 2;
      }
    }
  }
  void free_all() {
    for (const cuda::CUdeviceptr address : taken_) (void)cuda::cuMemFree_v2(address);
    taken_.clear();
  }

  std::vector<cuda::CUdeviceptr> taken_;
};

TEST_F(EngineOnFullCuda, SavesVolatileAndLazyTensorsAndRestoresThem) {
  add("statistics", 3000, 0, true);
  add("large_buffer", 3 * kMiB + 5, 0, true);
  add("w", 2 * kMiB + 17);
  tensors_.push_back({"strided", 0, true, DeviceTensor({nullptr, 1, {30, 20}, {1, 30}}, 9)});
  take_all();
  const std::uint64_t asked = swsim_calls("cuMemAlloc_v2");
  Engine engine = open(options());
  std::map<std::string, Bytes> before;
  for (std::uint64_t step = 1; step <= 3; ++step) {
    queue_update(1'000'000);
    before = expected();
    Snapshot snapshot = save(engine, step);
    for (Entry& entry : tensors_) {
      if (entry.at_once) queue_update(entry);  // as a forward pass would
    }
    ASSERT_TRUE(snapshot.fence(streams()));
    queue_update();
    const Status status = snapshot.wait(Level::kCommitted);
    ASSERT_TRUE(status) << status.error().to_string();
    EXPECT_EQ(saved(step), before);
  }
  EXPECT_EQ(swsim_calls("cuMemAlloc_v2"), asked) << "what is left belongs to the trainer";
  synchronize();
}

TEST_F(EngineOnFullCuda, RefusedDeviceMemoryDoesNotFailASave) {
  add("statistics", 3000, 0, true);
  add("w", kMiB);
  Engine engine = open(options());
  const auto out_of_memory = static_cast<int>(cuda::CUresult::kOutOfMemory);
  swsim_fail_call("cuMemAlloc_v2", 1, out_of_memory, 0);
  Snapshot snapshot = save(engine, 1);
  const Status status = snapshot.wait(Level::kCommitted);
  EXPECT_TRUE(status) << status.error().to_string();
  EXPECT_EQ(saved(1), expected());
  cuda::CUdeviceptr address = 0;
  EXPECT_EQ(cuda::cuMemAlloc_v2(&address, 1), cuda::CUresult::kOutOfMemory) << "nobody had asked before";
}

TEST_F(EngineOnCuda, TheFenceOnTheDeviceDoesNotWaitForEarlyCopies) {
  add("statistics", 3000, 0, true);
  must(swsim_stall_copies(0, SWSIM_STALL_ON));
  Engine engine = open(options());
  const auto before = expected();
  Snapshot snapshot = save(engine, 1);
  queue_update();
  ASSERT_TRUE(snapshot.fence(streams()));
  EXPECT_NE(snapshot.progress().level, Level::kStaged);
  EXPECT_EQ(snapshot.stats().device_fences, 1u);
  must(swsim_stall_copies(0, SWSIM_STALL_OFF));
  ASSERT_TRUE(snapshot.wait(Level::kCommitted));
  EXPECT_EQ(saved(1), before);
  synchronize();
}

TEST_F(EngineOnCuda, AStreamThatTheFenceOrdersWritesToAVolatileTensorBehindItsCopy) {
  add("statistics", 3000, 0, true);
  cuda::CUstream other = nullptr;
  must(cuda::cuStreamCreateWithPriority(&other, cuda::kStreamNonBlocking, 0));
  Engine engine = open(options());
  must(swsim_launch_delay(streams_.at(0), 60'000'000));
  const auto before = expected();
  Snapshot snapshot = save(engine, 1);
  ASSERT_TRUE(snapshot.fence(std::vector<StreamRef>{{0, reinterpret_cast<std::uintptr_t>(other)}}));
  must(swsim_launch_fill(other, tensors_[0].tensor.address, 3000, 0x42, 0));
  ASSERT_TRUE(snapshot.wait(Level::kCommitted));
  EXPECT_EQ(saved(1), before);
  must(cuda::cuStreamSynchronize(other));
  must(cuda::cuStreamDestroy_v2(other));
}

TEST_F(EngineOnCuda, StreamsAndEventsAreMadeAtOpenIfTheProcessUsesTheDevice) {
  add("statistics", 3000, 0, true);
  add("w", kMiB);
  Options automatic = options();
  automatic.pool_bytes = 0;
  Engine engine = open(automatic);
  const auto made = [] { return swsim_calls("cuStreamCreateWithPriority") + swsim_calls("cuEventCreate"); };
  const std::uint64_t before = made();
  EXPECT_GT(counters().events, 0u);
  ASSERT_TRUE(save(engine, 1).wait(Level::kCommitted));
  EXPECT_EQ(made(), before);
}

class EngineBesideCuda : public cuda::SimulatedDriver {};

TEST_F(EngineBesideCuda, OpensNoDeviceThatTheProcessDoesNotUse) {
  TempDir directory;
  Options options;
  options.path = directory.path() + "/run";
  options.cuda_driver = SW_SIM_CUDA_LIBRARY;
  options.log = [](LogLevel, std::string_view) {};
  auto engine = Engine::open(options);
  ASSERT_TRUE(engine) << engine.error().to_string();
  Bytes bytes(5000, std::byte{7});
  State state;
  state.tensors.push_back({.name = "w", .dtype = DType::kU8, .shape = {5000}, .strides = {}, .data = bytes.data()});
  auto snapshot = engine->save(1, std::move(state));
  ASSERT_TRUE(snapshot) << snapshot.error().to_string();
  ASSERT_TRUE((**snapshot).wait(Level::kCommitted));
  EXPECT_EQ(counters().contexts, 0u);
}

class EngineOnPinnedTensors : public EngineOnCuda {
 protected:
  static constexpr std::uint64_t kWhile = 60'000'000;  // ns: longer than a save() takes

  // A copy from the device into pinned memory that has not run yet when this returns.
  void fill_later(const cuda::PinnedBuffer& buffer, const DeviceTensor& from) {
    must(swsim_launch_delay(streams_.at(0), kWhile));
    must(cuda::cuMemcpyDtoHAsync_v2(buffer.data(), from.address, buffer.bytes().size(), streams_.at(0)));
  }
  static Tensor host_tensor(std::string name, std::span<std::byte> bytes, bool at_once) {
    return {.name = std::move(name),
            .dtype = DType::kU8,
            .shape = {static_cast<std::int64_t>(bytes.size())},
            .strides = {},
            .data = bytes.data(),
            .at_once = at_once};
  }
};

TEST_F(EngineOnPinnedTensors, ACopyThatStillFillsThemIsWaitedFor) {
  const auto source = DeviceTensor::flat(kMiB, 5);
  for (const bool at_once : {false, true}) {
    for (const bool named : {false, true}) {
      const cuda::PinnedBuffer buffer(kMiB);
      const std::uint64_t step = 1 + 2 * at_once + named;
      Options apart = options();
      apart.path += std::to_string(step);
      Engine engine = open(apart);
      State state;
      state.tensors.push_back(host_tensor("offloaded", buffer.bytes(), at_once));
      if (named) state.after = streams();  // otherwise the default stream, which waits for the trainer's
      fill_later(buffer, source);
      auto snapshot = engine.save(step, std::move(state));
      ASSERT_TRUE(snapshot) << snapshot.error().to_string();
      const Status status = (**snapshot).wait(Level::kCommitted);
      ASSERT_TRUE(status) << status.error().to_string();
      auto checkpoint = Checkpoint::open(apart.path, step);
      ASSERT_TRUE(checkpoint);
      Reader reader;
      ASSERT_TRUE(checkpoint->read(*reader.plan()(*checkpoint)));
      EXPECT_EQ(reader.read.at("offloaded"), source.twin) << at_once << named;
    }
  }
}

TEST_F(EngineOnPinnedTensors, ACopyThatStillFillsATargetDoesNotLandOnWhatWasRestored) {
  const auto source = DeviceTensor::flat(kMiB, 5);
  const cuda::PinnedBuffer buffer(kMiB);
  const Bytes before = buffer.copy();
  for (const bool named : {false, true}) {
    Options apart = options();
    apart.path += named ? "-named" : "";
    Engine engine = open(apart);
    State state;
    state.tensors.push_back(host_tensor("offloaded", buffer.bytes(), false));
    auto snapshot = engine.save(1, std::move(state));
    ASSERT_TRUE(snapshot && (**snapshot).wait(Level::kCommitted));
    fill_later(buffer, source);
    RestoreOptions restoring;
    if (named) restoring.after = streams();
    const auto restored = engine.restore(restoring, [&](const Checkpoint&) -> Result<std::vector<Target>> {
      return std::vector<Target>{{.name = "offloaded",
                                  .dtype = DType::kU8,
                                  .shape = {static_cast<std::int64_t>(kMiB)},
                                  .strides = {},
                                  .data = buffer.data()}};
    });
    ASSERT_TRUE(restored) << restored.error().to_string();
    synchronize();
    EXPECT_EQ(buffer.copy(), before) << named;
  }
}

TEST_F(EngineOnPinnedTensors, OrdinaryHostTensorsDoNotWaitForTheDevice) {
  Engine engine = open(options());
  Bytes bytes(5000, std::byte{7});
  State state;
  state.tensors.push_back(host_tensor("w", bytes, false));
  state.after = streams();
  must(swsim_launch_delay(streams_.at(0), kWhile));
  const std::uint64_t waits = counters().host_waits;
  auto snapshot = engine.save(1, std::move(state));
  ASSERT_TRUE(snapshot) << snapshot.error().to_string();
  ASSERT_TRUE((**snapshot).wait(Level::kCommitted));
  EXPECT_EQ(counters().host_waits, waits);
  synchronize();
}

TEST_F(EngineOnPinnedTensors, SaveWhileTheirStreamIsCapturedIsRefusedAndTheCaptureGoesOn) {
  Engine engine = open(options());
  const cuda::PinnedBuffer buffer(5000);
  State state;
  state.tensors.push_back(host_tensor("w", buffer.bytes(), false));
  state.after = streams();
  must(cuda::cuStreamBeginCapture_v2(streams_.at(0), cuda::CUstreamCaptureMode::kThreadLocal));
  const auto refused = engine.save(1, std::move(state));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::kInvalidArgument);
  cuda::CUgraph graph = nullptr;
  EXPECT_EQ(cuda::cuStreamEndCapture(streams_.at(0), &graph), cuda::CUresult::kSuccess);
  must(cuda::cuGraphDestroy(graph));
}

}  // namespace
}  // namespace slackwater::test
