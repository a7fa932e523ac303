// What is sampled when, and what a fence does while a graph is being captured.
#include <cerrno>
#include <chrono>
#include <memory>
#include <thread>

#include "engine/engine_impl.hpp"
#include "support/fault_file_system.hpp"
#include "unit/engine/cuda_fixture.hpp"

namespace slackwater::test {
namespace {

using namespace std::chrono_literals;

class EngineOnCudaAndAFaultyDisk : public EngineOnCuda {
 protected:
  Engine open_faulty() {
    auto faulty = std::make_unique<FaultFileSystem>(*real_);
    fs_ = faulty.get();
    auto engine = open_engine(options(), {.fs = std::move(faulty), .clock = nullptr});
    if (!engine) throw std::runtime_error(engine.error().to_string());
    return std::move(*engine);
  }
  // Copies to the host that the device has finished. Waits for so many of them, but not for ever.
  static bool wait_copied(std::uint64_t copies) {
    const auto give_up = std::chrono::steady_clock::now() + 30s;
    swsim_engine_stats stats{};
    do {
      must(swsim_engine(0, SWSIM_D2H, &stats));
      if (stats.copies >= copies) return true;
      std::this_thread::yield();
    } while (std::chrono::steady_clock::now() < give_up);
    return false;
  }

  std::unique_ptr<FileSystem> real_ = make_posix_file_system();
  FaultFileSystem* fs_ = nullptr;
};

TEST_F(EngineOnCudaAndAFaultyDisk, TensorsAreSampledBeforeTheDiskAnswers) {
  add("w", 3 * kMiB);
  Engine engine = open_faulty();
  fs_->hang(FsCall::kMakeDirectory, {.path = "step-"});
  Snapshot snapshot = save(engine, 1);
  ASSERT_TRUE(wait_copied(1)) << "the first sample waits for the disk";
  queue_update();  // without a fence, before the first copy
  synchronize();
  fs_->release_hung();
  const Status status = snapshot.wait(Level::kCommitted);
  ASSERT_FALSE(status) << "committed with the bytes of the next step";
  EXPECT_EQ(status.error().kind, ErrorKind::kTorn);
  EXPECT_EQ(status.error().tensor, "w");
  EXPECT_TRUE(engine.versions().empty());
}

TEST_F(EngineOnCudaAndAFaultyDisk, TensorsAreSampledWhileThePlanOfAnEarlierStepHangs) {
  add("w", 3 * kMiB);
  Engine engine = open_faulty();
  fs_->hang(FsCall::kMakeDirectory, {.path = "step-"});
  Snapshot first = save(engine, 1);
  ASSERT_TRUE(wait_copied(1));
  Snapshot second = save(engine, 2);
  EXPECT_TRUE(wait_copied(2)) << "the samples of one step wait for the plan of another";
  queue_update();  // without a fence
  synchronize();
  fs_->release_hung();
  for (Snapshot* const snapshot : {&first, &second}) {
    const Status status = snapshot->wait(Level::kCommitted);
    ASSERT_FALSE(status) << "step " << snapshot->step() << " was committed with the bytes of the next step";
    EXPECT_EQ(status.error().kind, ErrorKind::kTorn);
  }
  EXPECT_TRUE(engine.versions().empty());
}

TEST_F(EngineOnCudaAndAFaultyDisk, MemoryThatIsGivenToSomebodyElseUnderItsCopiesFailsTheSnapshotByName) {
  DeviceTensor& tensor = add("w", 3 * kMiB);
  Engine engine = open_faulty();
  const auto good = expected();
  ASSERT_TRUE(save(engine, 1).wait(Level::kCommitted));
  fs_->hang(FsCall::kMakeDirectory, {.path = "step-"});
  swsim_engine_stats before{};
  must(swsim_engine(0, SWSIM_D2H, &before));
  Snapshot snapshot = save(engine, 2);
  ASSERT_TRUE(wait_copied(before.copies + 1));
  // A caching allocator gives it to another tensor before the copies begin.
  const std::size_t size = tensor.twin.size();
  must(swsim_free_for_reuse(tensor.address));
  cuda::CUdeviceptr again = 0;
  must(cuda::cuMemAlloc_v2(&again, size));
  ASSERT_EQ(again, tensor.address);
  must(swsim_write(again, Bytes(size, std::byte{0x55}).data(), size));
  fs_->release_hung();
  const Status status = snapshot.wait(Level::kCommitted);
  ASSERT_FALSE(status) << "committed with the bytes of another tensor";
  EXPECT_EQ(status.error().kind, ErrorKind::kTorn);
  EXPECT_EQ(status.error().tensor, "w");
  EXPECT_FALSE(engine.close());
  EXPECT_EQ(saved(1), good);
}

TEST_F(EngineOnCudaAndAFaultyDisk, PlanThatFailsAfterTheSamplesLeavesNothingOnTheDevice) {
  add("w", 3 * kMiB);
  Engine engine = open_faulty();
  fs_->fail(FsCall::kMakeDirectory, EACCES, {.path = "step-"});
  Snapshot failed = save(engine, 1);
  EXPECT_FALSE(failed.wait(Level::kCommitted));
  EXPECT_TRUE(failed.wait_released());
  EXPECT_FALSE(engine.wait(Level::kCommitted));  // reported
  ASSERT_TRUE(save(engine, 2).wait(Level::kCommitted));
  EXPECT_EQ(saved(2), expected());
}  // the fixture finds what is left on the device

TEST_F(EngineOnCudaAndAFaultyDisk, SampleThatFailsFailsTheSnapshotAndNoOther) {
  add("w", 3 * kMiB);
  Engine engine = open_faulty();
  swsim_fail_call("cuMemcpy2DAsync_v2", 1, 719, 0);
  const Status status = save(engine, 1).wait(Level::kCommitted);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().kind, ErrorKind::kDevice);
  EXPECT_FALSE(engine.wait(Level::kCommitted));  // reported
  ASSERT_TRUE(save(engine, 2).wait(Level::kCommitted));
  EXPECT_EQ(saved(2), expected());
}

TEST_F(EngineOnCuda, FenceOfAStreamThatTakesNoWorkWaitsOnTheHost) {
  add("w", 3 * kMiB);
  Engine engine = open(options());
  const auto before = expected();
  Snapshot snapshot = save(engine, 1);
  must(cuda::cuStreamBeginCapture_v2(streams_.at(0), cuda::CUstreamCaptureMode::kRelaxed));
  const StreamRef legacy{0, 0};  // ordered with the stream that is being captured
  ASSERT_TRUE(snapshot.fence({&legacy, 1}));
  EXPECT_TRUE(snapshot.released()) << "an update that another stream runs now would tear the snapshot";
  EXPECT_EQ(snapshot.stats().host_fences, 1u);
  EXPECT_EQ(snapshot.stats().device_fences, 0u);
  cuda::CUgraph graph = nullptr;
  must(cuda::cuStreamEndCapture(streams_.at(0), &graph));
  must(cuda::cuGraphDestroy(graph));
  ASSERT_TRUE(snapshot.wait(Level::kCommitted));
  EXPECT_EQ(saved(1), before);
}

}  // namespace
}  // namespace slackwater::test
