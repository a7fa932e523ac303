#include <deque>
#include <thread>

#include "unit/engine/cuda_fixture.hpp"

namespace slackwater::test {
namespace {

constexpr std::uint64_t kSlow = 40u << 20;      // bytes a second: a MiB takes 25 ms
constexpr std::uint64_t kSlower = 1500u << 10;  // slow enough that this thread comes first, however busy the machine is

TEST_F(EngineOnCuda, SavesWhatLiesOnTheDevice) {
  add("w", 3 * kMiB + 17);
  add("small", 5000);
  add("empty", 0);
  Engine engine = open(options());
  Snapshot snapshot = save(engine, 1);
  ASSERT_TRUE(snapshot.wait(Level::kCommitted));
  EXPECT_EQ(saved(1), expected());
}

TEST_F(EngineOnCuda, UpdateQueuedBehindTheDeviceFenceDoesNotReachTheSnapshot) {
  add("w", 3 * kMiB);
  must(swsim_stall_copies(0, SWSIM_STALL_ON));
  Engine engine = open(options());
  const auto before = expected();
  Snapshot snapshot = save(engine, 1);
  ASSERT_TRUE(snapshot.fence(streams()));
  EXPECT_NE(snapshot.progress().level, Level::kStaged) << "the CPU was to go on while the copies run";
  queue_update();
  must(swsim_stall_copies(0, SWSIM_STALL_OFF));
  ASSERT_TRUE(snapshot.wait(Level::kCommitted));
  EXPECT_EQ(saved(1), before);
  EXPECT_EQ(snapshot.stats().device_fences, 1u);
  EXPECT_EQ(snapshot.stats().host_fences, 0u);
  synchronize();
  for (const Entry& entry : tensors_) EXPECT_EQ(entry.tensor.now(), entry.tensor.twin);
}

TEST_F(EngineOnCuda, FenceWaitsOnTheHostWhileThePoolIsFull) {
  add("w", 9 * kMiB);  // the pool has 4 MiB
  set_d2h_speed(20 * kSlow);
  Engine engine = open(options());
  for (std::uint64_t step = 1; step <= 3; ++step) {
    const auto before = expected();
    Snapshot snapshot = save(engine, step);
    ASSERT_TRUE(snapshot.fence(streams()));
    queue_update();
    ASSERT_TRUE(snapshot.wait(Level::kCommitted));
    EXPECT_EQ(saved(step), before);
  }
}

TEST_F(EngineOnCuda, HostFenceReturnsWhenTheBytesHaveLeft) {
  add("w", 2 * kMiB);
  set_d2h_speed(kSlow);
  Engine engine = open(options());
  const auto before = expected();
  Snapshot snapshot = save(engine, 1);
  ASSERT_TRUE(snapshot.fence());
  EXPECT_TRUE(snapshot.released());
  queue_update();
  ASSERT_TRUE(snapshot.wait(Level::kCommitted));
  EXPECT_EQ(saved(1), before);
  EXPECT_EQ(snapshot.stats().host_fences, 1u);
  EXPECT_EQ(snapshot.stats().device_fences, 0u);
}

TEST_F(EngineOnCuda, CopiesWaitForTheWorkThatProducesTheState) {
  add("w", kMiB);
  Engine engine = open(options());
  queue_update(30'000'000);  // still running when save() is called
  const auto produced = expected();
  Snapshot snapshot = save(engine, 1);
  ASSERT_TRUE(snapshot.wait(Level::kCommitted));
  EXPECT_EQ(saved(1), produced);
}

TEST_F(EngineOnCuda, WithoutStreamsTheDefaultStreamIsWaitedFor) {
  add("w", kMiB);
  Engine engine = open(options());
  must(swsim_launch_fill(nullptr, tensors_[0].tensor.address, kMiB, 0x5a, 30'000'000));
  State state = this->state();
  state.after.clear();
  auto snapshot = engine.save(1, std::move(state));
  ASSERT_TRUE(snapshot) << snapshot.error().to_string();
  ASSERT_TRUE((**snapshot).wait(Level::kCommitted));
  EXPECT_EQ(saved(1).at("w"), Bytes(kMiB, std::byte{0x5a}));
}

TEST_F(EngineOnCuda, UpdateWithoutAFenceIsNoticedAndNeverCommitted) {
  add("w", 3 * kMiB);
  set_d2h_speed(kSlower);
  Engine engine = open(options());
  Snapshot snapshot = save(engine, 1);
  ASSERT_TRUE(snapshot.wait(Level::kFenced));
  must(swsim_wait_begun(0, SWSIM_D2H, 2));  // the first look is over, a copy is under way
  queue_update();
  set_d2h_speed(0);  // the copy under way keeps its speed
  const Status status = snapshot.wait(Level::kCommitted);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().kind, ErrorKind::kTorn);
  EXPECT_EQ(snapshot.torn_tensors(), std::vector<std::string>{"w"});
  EXPECT_TRUE(engine.versions().empty());
  EXPECT_FALSE(engine.wait(Level::kCommitted));  // reports it, and has learned from it
  synchronize();
  Snapshot next = save(engine, 2);  // captured inside save() from now on: no fence needed
  const auto before = expected();
  queue_update();
  ASSERT_TRUE(next.wait(Level::kCommitted));
  EXPECT_EQ(saved(2), before);
}

TEST_F(EngineOnCuda, VolatileTensorsAreDuplicatedInStreamOrder) {
  add("statistics", 3000, 0, true);
  add("w", 2 * kMiB);
  set_d2h_speed(kSlow);
  Engine engine = open(options());
  queue_update(5'000'000);
  const Bytes statistics = expected().at("statistics");
  Snapshot snapshot = save(engine, 1);
  tensors_[0].tensor.update(streams_.at(0));  // as a forward pass would
  ASSERT_TRUE(snapshot.wait(Level::kCommitted));
  EXPECT_EQ(saved(1).at("statistics"), statistics);
  EXPECT_EQ(snapshot.stats().at_once_bytes, 3000u);
}

// A trainer with two streams on one device; each may produce a tensor, and write to it next.
class EngineOnTwoStreams : public EngineOnCuda {
 protected:
  static constexpr std::uint64_t kWhile = 60'000'000;  // ns: longer than a save() takes

  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(EngineOnCuda::SetUp());
    must(cuda::cuStreamCreateWithPriority(&second_, cuda::kStreamNonBlocking, 0));
  }
  void TearDown() override {
    (void)cuda::cuCtxSetCurrent(contexts_.at(0));
    (void)cuda::cuStreamDestroy_v2(second_);
    EngineOnCuda::TearDown();
  }
  void fill(cuda::CUstream stream, std::uint8_t value, std::uint64_t duration_ns, std::size_t index = 0) {
    DeviceTensor& tensor = tensors_[index].tensor;
    must(swsim_launch_fill(stream, tensor.address, tensor.twin.size(), value, duration_ns));
  }
  Snapshot save_after_both(Engine& engine, std::uint64_t step) {
    State both = state();
    both.after.push_back({0, reinterpret_cast<std::uintptr_t>(second_)});
    auto snapshot = engine.save(step, std::move(both));
    if (!snapshot) throw std::runtime_error(snapshot.error().to_string());
    return std::move(**snapshot);
  }
  static Bytes of(std::uint8_t value, std::size_t size) { return Bytes(size, std::byte{value}); }

  cuda::CUstream second_ = nullptr;
};

TEST_F(EngineOnTwoStreams, CopiesWaitForBoth) {
  add("w", kMiB);
  Engine engine = open(options());
  fill(second_, 0x21, kWhile);
  ASSERT_TRUE(save_after_both(engine, 1).wait(Level::kCommitted));
  EXPECT_EQ(saved(1).at("w"), of(0x21, kMiB));
}

TEST_F(EngineOnTwoStreams, AVolatileTensorIsDuplicatedBehindWhicheverProducesIt) {
  add("statistics", 3000, 0, true);
  Engine engine = open(options());
  fill(second_, 0x21, kWhile);
  ASSERT_TRUE(save_after_both(engine, 1).wait(Level::kCommitted));
  EXPECT_EQ(saved(1).at("statistics"), of(0x21, 3000));
}

TEST_F(EngineOnTwoStreams, WhicheverWritesToAVolatileTensorNextDoesSoBehindItsDuplicate) {
  add("statistics", 3000, 0, true);
  add("w", kMiB);
  Engine engine = open(options());
  fill(streams_.at(0), 0x21, kWhile, 1);  // the duplicate of the statistics is made behind this
  Snapshot snapshot = save_after_both(engine, 1);
  fill(second_, 0x42, 0);
  ASSERT_TRUE(snapshot.wait(Level::kCommitted));
  EXPECT_EQ(saved(1).at("statistics"), tensors_[0].tensor.packed_twin());
  must(cuda::cuStreamSynchronize(second_));
}

TEST_F(EngineOnCuda, ParanoidLooksBehindTheWorkThatProducesTheState) {
  add("w", kMiB);
  Options paranoid = options();
  paranoid.paranoid = true;
  Engine engine = open(paranoid);
  queue_update(60'000'000);
  const auto produced = expected();
  const Status status = save(engine, 1).wait(Level::kCommitted);
  ASSERT_TRUE(status) << status.error().to_string();
  EXPECT_EQ(saved(1), produced);
}

TEST_F(EngineOnCuda, ParanoidSeesAnyByteThatChanges) {
  add("w", kMiB / 2);
  set_d2h_speed(kSlower);
  Options paranoid = options();
  paranoid.paranoid = true;
  Engine engine = open(paranoid);
  Snapshot fine = save(engine, 1);
  ASSERT_TRUE(fine.fence(streams()));
  EXPECT_TRUE(fine.released()) << "the device must stand still until every byte was looked at twice";
  ASSERT_TRUE(fine.wait(Level::kCommitted));
  // On a busy machine the write may come when all is over; then the next step is tried.
  auto last = static_cast<std::uint8_t>(tensors_[0].tensor.twin.back());
  Status status;
  for (std::uint64_t step = 2; step < 12 && status; ++step) {
    Snapshot torn = save(engine, step);
    last = static_cast<std::uint8_t>(~static_cast<unsigned>(last));
    must(swsim_launch_fill(streams_.at(0), tensors_[0].tensor.address + kMiB / 2 - 1, 1, last, 0));
    status = torn.wait(Level::kCommitted);
  }
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().kind, ErrorKind::kTorn);
}

TEST_F(EngineOnCuda, ParanoidDoesNotWaitForEachTensor) {
  for (int i = 0; i < 200; ++i) add("t" + std::to_string(i), 3'000 + i);  // one slab
  Options paranoid = options();
  paranoid.paranoid = true;
  Engine engine = open(paranoid);
  const std::uint64_t waits = counters().host_waits;
  const Status status = save(engine, 1).wait(Level::kCommitted);
  ASSERT_TRUE(status) << status.error().to_string();
  EXPECT_LE(counters().host_waits - waits, 20u) << "at save(), and again when the copies are done";
  EXPECT_EQ(saved(1), expected());
}

TEST_F(EngineOnCuda, RestoresStraightToTheDevice) {
  add("w", 5 * kMiB + 3);  // more than the pool
  add("b", 777);
  Engine engine = open(options());
  ASSERT_TRUE(save(engine, 1).wait(Level::kCommitted));
  const auto before = expected();
  queue_update(300'000'000);  // still running when restore() is called
  auto restored =
      engine.restore({.step = {}, .after = streams()}, [&](const Checkpoint&) -> Result<std::vector<Target>> {
        std::vector<Target> targets;
        for (const Entry& entry : tensors_) {
          targets.push_back({.name = entry.name,
                             .dtype = DType::kU8,
                             .shape = as_vector(entry.tensor.memory.shape),
                             .strides = {},
                             .data = entry.tensor.memory.data,
                             .device = 0});
        }
        return targets;
      });
  ASSERT_TRUE(restored) << restored.error().to_string();
  synchronize();  // an update that was not waited for would land now, upon what was restored
  for (const Entry& entry : tensors_) EXPECT_EQ(entry.tensor.now(), before.at(entry.name)) << entry.name;
}

TEST_F(EngineOnCuda, PoolOfASetSizeIsRegisteredAtOpenWhenTheDeviceIsInUse) {
  Engine engine = open(options());
  while (counters().pinned_bytes < options().pool_bytes) std::this_thread::yield();  // in the background
  EXPECT_EQ(engine.stats().pool_bytes, options().pool_bytes);
  Options automatic = options();
  automatic.path += "-auto";
  automatic.pool_bytes = 0;
  EXPECT_EQ(open(automatic).stats().pool_bytes, 0u) << "its size is not known before the first save";
}

TEST_F(EngineOnCuda, SaveWhileAGraphIsCapturedIsRefused) {
  add("w", kMiB);
  Engine engine = open(options());
  must(cuda::cuStreamBeginCapture_v2(streams_.at(0), cuda::CUstreamCaptureMode::kRelaxed));
  const auto refused = engine.save(1, state());
  cuda::CUgraph graph = nullptr;
  must(cuda::cuStreamEndCapture(streams_.at(0), &graph));
  must(cuda::cuGraphDestroy(graph));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::kInvalidArgument);
  EXPECT_NE(refused.error().message.find("captured"), std::string::npos);
  EXPECT_TRUE(engine.save(1, state()).has_value());
}

TEST_F(EngineOnCuda, EngineAtWorkLeavesACaptureOfTheTrainerAlone) {
  add("w", 3 * kMiB);
  set_d2h_speed(kSlow);
  Engine engine = open(options());
  Snapshot snapshot = save(engine, 1);
  must(cuda::cuStreamBeginCapture_v2(streams_.at(0), cuda::CUstreamCaptureMode::kGlobal));
  ASSERT_TRUE(snapshot.fence(streams()));  // as a step pre-hook inside the capture does
  ASSERT_TRUE(snapshot.wait(Level::kCommitted));
  cuda::CUgraph graph = nullptr;
  must(cuda::cuStreamEndCapture(streams_.at(0), &graph));  // an invalidated capture would say so
  must(cuda::cuGraphDestroy(graph));
  EXPECT_EQ(saved(1), expected());
}

TEST_F(EngineOnCuda, MixesHostAndDevice) {
  add("on_device", 2 * kMiB + 1);
  Bytes on_host(kMiB + 5, std::byte{7});
  Engine engine = open(options());
  State state = this->state();
  state.tensors.push_back({.name = "on_host",
                           .dtype = DType::kU8,
                           .shape = {static_cast<std::int64_t>(on_host.size())},
                           .strides = {},
                           .data = on_host.data()});
  auto before = expected();
  before["on_host"] = on_host;
  auto snapshot = engine.save(1, std::move(state));
  ASSERT_TRUE(snapshot) << snapshot.error().to_string();
  ASSERT_TRUE((**snapshot).fence(streams()));
  queue_update();
  std::ranges::fill(on_host, std::byte{8});
  ASSERT_TRUE((**snapshot).wait(Level::kCommitted));
  EXPECT_EQ(saved(1), before);
}

TEST_F(EngineOnCuda, MissingDriverIsAnErrorOnlyForTensorsOnADevice) {
  add("w", 100);
  Options without = options();
  without.cuda_driver = "libslackwater-nowhere.so.1";
  Engine engine = open(without);
  const auto refused = engine.save(1, state());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::kUnsupported);
  EXPECT_NE(refused.error().message.find("'w'"), std::string::npos) << refused.error().message;
  Model model;
  model.add("h", 100);
  auto snapshot = engine.save(1, model.state());
  ASSERT_TRUE(snapshot) << snapshot.error().to_string();
  EXPECT_TRUE((**snapshot).wait(Level::kCommitted));
}

TEST_F(EngineOnCuda, FailedCopyFailsTheSnapshotAndNoOther) {
  add("w", 3 * kMiB);
  Engine engine = open(options());
  ASSERT_TRUE(save(engine, 1).wait(Level::kCommitted));
  const auto good = expected();
  swsim_fail_call("cuMemcpyDtoHAsync_v2", 2, 719, 0);
  Snapshot failed = save(engine, 2);
  static_cast<void>(failed.fence(streams()));
  const Status status = failed.wait(Level::kCommitted);
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().message.find("cuMemcpyDtoHAsync_v2"), std::string::npos) << status.error().message;
  EXPECT_EQ(saved(1), good);
  ASSERT_TRUE(save(engine, 3).wait(Level::kCommitted));
  EXPECT_FALSE(engine.close()) << "the failure was not reported yet";
}

TEST_F(EngineOnCuda, LostDeviceFailsTheSnapshotAndCloseReturns) {
  add("w", 3 * kMiB);
  Engine engine = open(options());
  ASSERT_TRUE(save(engine, 1).wait(Level::kCommitted));
  const auto good = expected();
  must(swsim_stall_copies(0, SWSIM_STALL_ON));
  Snapshot lost = save(engine, 2);
  ASSERT_TRUE(lost.wait(Level::kFenced));
  must(swsim_lose_device(0));
  device_lost_ = true;
  const Status status = lost.wait(Level::kCommitted);
  ASSERT_FALSE(status);
  static_cast<void>(lost.fence(streams()));  // returns
  auto after = engine.save(3, state());      // training goes on, on the host or not at all; save() is not what ends it
  ASSERT_TRUE(after) << after.error().to_string();
  ASSERT_TRUE((**after).error().has_value());
  EXPECT_EQ((**after).error()->kind, ErrorKind::kDevice);
  EXPECT_FALSE(engine.close());
  EXPECT_EQ(saved(1), good);
}

TEST_F(EngineOnCuda, StalledDeviceLetsTheFenceGoAfterTheStallTimeout) {
  add("w", 3 * kMiB);
  Options impatient = options();
  impatient.stall_timeout = std::chrono::milliseconds(100);
  Engine engine = open(impatient);
  // The pool may not be ready yet. On a busy machine that alone takes longer than the time-out, and the next step is
  // tried. After that all slabs are free, and a save waits for nothing.
  std::uint64_t step = 1;
  for (Status first = save(engine, step).wait(Level::kCommitted); !first;
       first = save(engine, ++step).wait(Level::kCommitted)) {
    ASSERT_TRUE(first.error().kind == ErrorKind::kTimeout && step < 200) << first.error().to_string();
    EXPECT_FALSE(engine.wait(Level::kCommitted));
  }
  ASSERT_TRUE(engine.wait(Level::kCommitted));
  must(swsim_stall_copies(0, SWSIM_STALL_ON));
  Snapshot snapshot = save(engine, step + 1);
  const Status fenced = snapshot.fence();
  EXPECT_FALSE(fenced);
  must(swsim_stall_copies(0, SWSIM_STALL_OFF));
  EXPECT_FALSE(snapshot.wait(Level::kCommitted));
  ASSERT_TRUE(snapshot.wait_released());
  EXPECT_FALSE(engine.wait(Level::kCommitted));
  ASSERT_TRUE(save(engine, step + 2).wait(Level::kCommitted));
}

TEST_F(EngineOnCuda, NothingSpinsAndTheOldInterfaceIsNotCalled) {
  add("w", 3 * kMiB);
  set_d2h_speed(kSlow);
  {
    Engine engine = open(options());
    for (std::uint64_t step = 1; step <= 3; ++step) {
      Snapshot snapshot = save(engine, step);
      ASSERT_TRUE(snapshot.fence(streams()));
      queue_update();
    }
    ASSERT_TRUE(engine.close());
  }
  EXPECT_EQ(counters().spinning_waits, 0u);
  EXPECT_EQ(counters().old_abi_calls, 0u);
}

class EngineOnTwoDevices : public EngineOnCuda {
 protected:
  EngineOnTwoDevices() : EngineOnCuda(2) {}
};

TEST_F(EngineOnTwoDevices, OneSnapshotSpansBoth) {
  add("a", 2 * kMiB + 9, 0);
  add("b", 2 * kMiB + 5, 1);
  for (const int device : {0, 1}) must(swsim_stall_copies(device, SWSIM_STALL_ON));
  Options roomy = options();
  roomy.pool_bytes = 8 * kMiB;
  Engine engine = open(roomy);
  const auto before = expected();
  Snapshot snapshot = save(engine, 1);
  ASSERT_TRUE(snapshot.fence(streams()));
  queue_update();
  for (const int device : {0, 1}) must(swsim_stall_copies(device, SWSIM_STALL_OFF));
  ASSERT_TRUE(snapshot.wait(Level::kCommitted));
  EXPECT_EQ(saved(1), before);
  EXPECT_EQ(snapshot.stats().device_fences, 1u);
}

TEST_F(EngineOnTwoDevices, DeviceWithoutAStreamMakesTheFenceWaitOnTheHost) {
  add("a", kMiB, 0);
  add("b", kMiB, 1);
  Engine engine = open(options());
  Snapshot snapshot = save(engine, 1);
  const std::vector<StreamRef> only_first{streams().front()};
  ASSERT_TRUE(snapshot.fence(only_first));
  EXPECT_TRUE(snapshot.released());
  EXPECT_EQ(snapshot.stats().host_fences, 1u);
}

// Both devices are in use. Device 0 is near node 4, device 1 near node 7.
class EngineOnTwoNodes : public EngineOnCuda {
 protected:
  EngineOnTwoNodes() : EngineOnCuda(2) {}
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(EngineOnCuda::SetUp());
    for (const int device : {0, 1}) {
      swsim_device_config config{};
      must(swsim_get_config(device, &config));
      config.numa_node = device == 0 ? 4 : 7;
      must(swsim_set_config(device, &config));
      use_device(device);
    }
  }
};

TEST_F(EngineOnTwoNodes, PoolAtOpenBelongsToTheCurrentDevice) {
  use_device(1);
  EXPECT_EQ(open(options()).stats().pool_numa_node, 7);
  use_device(0);
  EXPECT_EQ(open(options()).stats().pool_numa_node, 4);
}

TEST_F(EngineOnTwoNodes, PoolBelongsToTheDeviceThatHoldsMostOfTheState) {
  add("small", 4096, 0);
  add("large", 2 * kMiB, 1);
  use_device(0);
  Options automatic = options();
  automatic.pool_bytes = 0;
  Engine saves = open(automatic);
  ASSERT_TRUE(save(saves, 1).wait(Level::kCommitted));
  EXPECT_EQ(saves.stats().pool_numa_node, 7);
  ASSERT_TRUE(saves.close());
  automatic.path += "-prepared";
  Engine prepares = open(automatic);
  ASSERT_TRUE(prepares.prepare(state()));
  EXPECT_EQ(prepares.stats().pool_numa_node, 7);
}

}  // namespace
}  // namespace slackwater::test
