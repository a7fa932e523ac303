// Memory of the trainer that goes away although copies of it are pending: what the snapshot says, and what is left.
#include "unit/engine/cuda_fixture.hpp"

namespace slackwater::test {
namespace {

class EngineOnCudaMemoryThatGoes : public EngineOnCuda {
 protected:
  // A good version, and a snapshot whose copies are queued, but have not begun.
  Snapshot save_and_stall(Engine& engine) {
    EXPECT_TRUE(save(engine, 1).wait(Level::kCommitted));
    good_ = expected();
    queue_update();
    synchronize();
    must(swsim_stall_copies(0, SWSIM_STALL_ON));
    Snapshot snapshot = save(engine, 2);
    EXPECT_TRUE(snapshot.wait(Level::kFenced));
    return snapshot;
  }
  static void let_go() { must(swsim_stall_copies(0, SWSIM_STALL_OFF)); }

  std::map<std::string, Bytes> good_;
};

TEST_F(EngineOnCudaMemoryThatGoes, UnmappedUnderItsCopiesFailsTheSnapshotAndCloseReturns) {
  const DeviceTensor& tensor = add("w", 3 * kMiB);
  Engine engine = open(options());
  Snapshot snapshot = save_and_stall(engine);
  must(swsim_unmap(tensor.address));
  device_lost_ = true;  // the error sticks to the context
  let_go();
  const Status status = snapshot.wait(Level::kCommitted);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().kind, ErrorKind::kDevice);
  EXPECT_NE(status.error().message.find("cuda:0"), std::string::npos) << status.error().message;
  ASSERT_TRUE(snapshot.wait_released());
  static_cast<void>(snapshot.fence(streams()));  // returns
  EXPECT_FALSE(engine.close());
  EXPECT_EQ(saved(1), good_);
}

TEST_F(EngineOnCudaMemoryThatGoes, BehindAFenceOnTheHostAllIsWell) {
  DeviceTensor& tensor = add("w", 3 * kMiB);
  Engine engine = open(options());
  for (std::uint64_t step = 1; step <= 3; ++step) {
    if (step > 1) set_d2h_speed(50 * kMiB);
    const auto before = expected();
    Snapshot snapshot = save(engine, step);
    ASSERT_TRUE(snapshot.fence());
    must(swsim_unmap(tensor.address));
    must(swsim_map(tensor.address));
    const std::size_t size = tensor.twin.size();
    must(swsim_free_for_reuse(tensor.address));
    must(cuda::cuMemAlloc_v2(&tensor.address, size));
    must(swsim_write(tensor.address, Bytes(size, std::byte{0x55}).data(), size));
    ASSERT_TRUE(snapshot.wait(Level::kCommitted));
    EXPECT_EQ(saved(step), before);
    tensor.memory.data = reinterpret_cast<std::byte*>(tensor.address);
    tensor.write();
    queue_update();
    synchronize();
  }
  EXPECT_TRUE(engine.close());
}

}  // namespace
}  // namespace slackwater::test
