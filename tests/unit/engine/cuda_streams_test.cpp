// A stream of the trainer that is gone when something fails. The trainer may destroy it as soon as save() has returned,
// so no later call may use its handle. The fixture checks that nobody did.
#include <cerrno>
#include <functional>
#include <memory>

#include "engine/engine_impl.hpp"
#include "support/fault_file_system.hpp"
#include "unit/engine/cuda_fixture.hpp"

namespace slackwater::test {
namespace {

class EngineAfterItsStream : public EngineOnCuda {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(EngineOnCuda::SetUp());
    add("statistics", 3000, 0, true);
    add("w", 3 * kMiB);
    must(cuda::cuStreamCreateWithPriority(&own_, cuda::kStreamNonBlocking, 0));
  }
  Engine open_faulty() {
    auto faulty = std::make_unique<FaultFileSystem>(*real_);
    fs_ = faulty.get();
    auto engine = open_engine(options(), {.fs = std::move(faulty), .clock = nullptr});
    if (!engine) throw std::runtime_error(engine.error().to_string());
    return std::move(*engine);
  }
  // Saves, destroys the stream, then has `provoke` prepare an error. Until all of that is done, the disk holds up the
  // plan, and the device the early copies. So whatever is done about the error comes after the end of the stream.
  Snapshot save_and_lose_the_stream(Engine& engine, const std::function<void()>& provoke) {
    fs_->hang(FsCall::kMakeDirectory, {.path = "step-"});
    must(swsim_stall_copies(0, SWSIM_STALL_ON));
    State state = EngineOnCuda::state();
    state.after = {{0, reinterpret_cast<std::uintptr_t>(own_)}};
    auto snapshot = engine.save(1, std::move(state));
    if (!snapshot) throw std::runtime_error(snapshot.error().to_string());
    must(cuda::cuStreamDestroy_v2(std::exchange(own_, nullptr)));
    provoke();
    must(swsim_stall_copies(0, SWSIM_STALL_OFF));
    fs_->release_hung();
    return std::move(**snapshot);
  }
  static void fail_next(const char* call, std::uint64_t nth = 1) {
    swsim_fail_call(call, nth, static_cast<int>(cuda::CUresult::kUnknown), 0);
  }
  // So that no event can be waited for, that of the early copies neither.
  static void fail_waits() {
    for (std::uint64_t nth = 1; nth <= 50; ++nth) fail_next("cuEventSynchronize", nth);
  }

  cuda::CUstream own_ = nullptr;
  std::unique_ptr<FileSystem> real_ = make_posix_file_system();
  FaultFileSystem* fs_ = nullptr;
};

TEST_F(EngineAfterItsStream, ASnapshotIsCommitted) {
  Engine engine = open_faulty();
  const Status status = save_and_lose_the_stream(engine, [] {}).wait(Level::kCommitted);
  ASSERT_TRUE(status) << status.error().to_string();
  EXPECT_EQ(saved(1), expected());
  EXPECT_EQ(counters().invalid_handles, 0u);
}

TEST_F(EngineAfterItsStream, AFailedWaitDoesNotUseIt) {
  Engine engine = open_faulty();
  Snapshot snapshot = save_and_lose_the_stream(engine, [] { fail_waits(); });
  EXPECT_FALSE(snapshot.wait(Level::kCommitted));
  EXPECT_FALSE(engine.close());
  EXPECT_EQ(counters().invalid_handles, 0u);
}

TEST_F(EngineAfterItsStream, AFailedCopyOrEventDoesNotUseIt) {
  for (const char* call : {"cuMemcpyDtoHAsync_v2", "cuEventRecord"}) {
    if (own_ == nullptr) must(cuda::cuStreamCreateWithPriority(&own_, cuda::kStreamNonBlocking, 0));
    Engine engine = open_faulty();
    Snapshot snapshot = save_and_lose_the_stream(engine, [&] { fail_next(call); });
    EXPECT_FALSE(snapshot.wait(Level::kCommitted)) << call;
    EXPECT_TRUE(snapshot.wait_released());
    EXPECT_FALSE(engine.close()) << "the failure was not reported yet";
    EXPECT_EQ(counters().invalid_handles, 0u) << call;
    std::filesystem::remove_all(options().path);
  }
}

TEST_F(EngineAfterItsStream, AFailedPlanDoesNotUseIt) {
  Engine engine = open_faulty();
  Snapshot snapshot = save_and_lose_the_stream(engine, [&] {
    fs_->fail(FsCall::kOpen, EACCES, {.path = "rank-"});
    fail_waits();
  });
  EXPECT_FALSE(snapshot.wait(Level::kCommitted));
  EXPECT_FALSE(engine.close());
  EXPECT_EQ(counters().invalid_handles, 0u);
}

TEST_F(EngineAfterItsStream, AnotherStreamIsFencedBehindItsCopies) {
  Engine engine = open_faulty();
  const auto before = expected();
  Snapshot snapshot = save_and_lose_the_stream(engine, [] {});
  ASSERT_TRUE(snapshot.fence(streams()));
  queue_update();
  const Status status = snapshot.wait(Level::kCommitted);
  ASSERT_TRUE(status) << status.error().to_string();
  EXPECT_EQ(saved(1), before);
  EXPECT_EQ(counters().invalid_handles, 0u);
  synchronize();
}

}  // namespace
}  // namespace slackwater::test
