// How much is queued on a device before the fence, and what the fence does with the rest.
#include <chrono>
#include <thread>

#include "unit/engine/cuda_fixture.hpp"

namespace slackwater::test {
namespace {

class EngineBacklog : public EngineOnCuda {
 protected:
  static constexpr std::uint64_t kChunks = 9;  // of a state of 8 MiB, with the header

  Options options(std::uint64_t copies_ahead_bytes, std::uint64_t pool_bytes) {
    Options options = EngineOnCuda::options();
    options.copies_ahead_bytes = copies_ahead_bytes;
    options.pool_bytes = pool_bytes;
    return options;
  }
  [[nodiscard]] static std::uint64_t copies() { return swsim_calls("cuMemcpyDtoHAsync_v2"); }
  static void until_copies(std::uint64_t count) {
    while (copies() < count) std::this_thread::yield();
  }
};

TEST_F(EngineBacklog, TheRestIsQueuedAtTheFenceWhichStaysOnTheDevice) {
  add("w", 8 * kMiB);
  must(swsim_stall_copies(0, SWSIM_STALL_ON));
  Engine engine = open(options(2 * kMiB, 12 * kMiB));
  const auto before = expected();
  const std::uint64_t earlier = copies();
  Snapshot snapshot = save(engine, 1);
  until_copies(earlier + 2);
  EXPECT_EQ(copies(), earlier + 2) << "more than copies_ahead was queued before the fence";
  EXPECT_EQ(snapshot.progress().level, Level::kCaptured);
  ASSERT_TRUE(snapshot.fence(streams()));
  EXPECT_EQ(copies(), earlier + kChunks);
  queue_update();
  must(swsim_stall_copies(0, SWSIM_STALL_OFF));
  ASSERT_TRUE(snapshot.wait(Level::kCommitted));
  EXPECT_EQ(saved(1), before);
  EXPECT_EQ(snapshot.stats().device_fences, 1u);
  EXPECT_EQ(snapshot.stats().host_fences, 0u);
}

TEST_F(EngineBacklog, CopiesLeaveInTurnsUntilTheFence) {
  add("w", 8 * kMiB);
  must(swsim_stall_copies(0, SWSIM_STALL_ON));
  Options in_turns = options(2 * kMiB, 12 * kMiB);
  in_turns.copy_turn_bytes = kMiB / 4;
  Engine engine = open(in_turns);
  const std::uint64_t earlier = copies();
  Snapshot snapshot = save(engine, 1);
  until_copies(earlier + 8);  // two chunks in quarters
  EXPECT_EQ(copies(), earlier + 8);
  ASSERT_TRUE(snapshot.fence(streams()));
  EXPECT_EQ(copies(), earlier + 8 + (kChunks - 2)) << "after the fence, as few copies as possible";
  must(swsim_stall_copies(0, SWSIM_STALL_OFF));
  ASSERT_TRUE(snapshot.wait(Level::kCommitted));
  EXPECT_EQ(saved(1), expected());
}

TEST_F(EngineBacklog, WaitingForFencedHasTheRestQueued) {
  add("w", 8 * kMiB);
  must(swsim_stall_copies(0, SWSIM_STALL_ON));
  Engine engine = open(options(kMiB, 12 * kMiB));
  Snapshot snapshot = save(engine, 1);
  ASSERT_TRUE(snapshot.wait(Level::kFenced));
  must(swsim_stall_copies(0, SWSIM_STALL_OFF));
  ASSERT_TRUE(snapshot.wait(Level::kCommitted));
  EXPECT_EQ(saved(1), expected());
}

TEST_F(EngineBacklog, APoolSmallerThanTheStateWorksWithALimitOfOneSlab) {
  add("w", 8 * kMiB);
  Engine engine = open(options(kMiB, 3 * kMiB));
  for (std::uint64_t step = 1; step <= 3; ++step) {
    const auto before = expected();
    Snapshot snapshot = save(engine, step);
    ASSERT_TRUE(snapshot.fence(streams()));
    queue_update();
    ASSERT_TRUE(snapshot.wait(Level::kCommitted));
    EXPECT_EQ(saved(step), before);
  }
}

TEST_F(EngineBacklog, CloseWithoutAFenceCommitsWhatWasHeldBack) {
  add("w", 8 * kMiB);
  must(swsim_stall_copies(0, SWSIM_STALL_ON));
  Engine engine = open(options(kMiB, 12 * kMiB));
  const std::uint64_t earlier = copies();
  save(engine, 1);
  until_copies(earlier + 1);
  must(swsim_stall_copies(0, SWSIM_STALL_OFF));
  ASSERT_TRUE(engine.close());
  EXPECT_EQ(saved(1), expected());
}

// Registering the whole pool takes up to a minute, and the fence would wait for all of it.
TEST_F(EngineBacklog, ASaveRegistersTheSlabsThatItUsesAndNotThePool) {
  Engine engine = open(options(2 * kMiB, 0));
  Bytes bytes(32 * kMiB);
  State on_host;
  on_host.tensors.push_back({.name = "w",
                             .dtype = DType::kU8,
                             .shape = {static_cast<std::int64_t>(bytes.size())},
                             .strides = {},
                             .data = bytes.data()});
  ASSERT_TRUE(engine.prepare(std::move(on_host)));
  while (!engine.wait_prepared(std::chrono::seconds(1)).value()) {
  }
  const auto registered = [] { return swsim_calls("cuMemHostRegister_v2"); };
  ASSERT_EQ(registered(), 0u) << "no device is in use yet";
  add("w", 2 * kMiB);
  for (std::uint64_t step = 1; step <= 3; ++step) {
    Snapshot snapshot = save(engine, step);
    ASSERT_TRUE(snapshot.fence(streams()));
    ASSERT_TRUE(snapshot.wait(Level::kCommitted));
    EXPECT_EQ(saved(step), expected());
  }
  EXPECT_EQ(engine.stats().pool_bytes / kMiB, 33u);
  EXPECT_LE(registered(), 3u * 3u) << "at most the chunks of three small steps";
}

// While memory is registered, calls of the trainer wait for the driver's lock.
TEST_F(EngineBacklog, RegistrationsLeaveThreeTimesTheirLengthToTheTrainer) {
  constexpr std::uint64_t kSlabs = 8;
  constexpr std::chrono::milliseconds kCost(5);
  must(swsim_set_cost(SWSIM_COST_REGISTER, std::chrono::nanoseconds(kCost).count(), 0));
  const auto begun = std::chrono::steady_clock::now();
  {
    Engine engine = open(options(2 * kMiB, kSlabs * kMiB));  // registers its pool in the background
    while (swsim_calls("cuMemHostRegister_v2") < kSlabs) std::this_thread::yield();
  }
  EXPECT_GE(std::chrono::steady_clock::now() - begun, (kSlabs - 2) * 4 * kCost);
}

TEST_F(EngineBacklog, BatchedCopiesCanBeSwitchedOff) {
  for (int i = 0; i < 20; ++i) add(std::to_string(i), 5'000);
  for (const bool batched : {true, false}) {
    Options chosen = options(kMiB, 4 * kMiB);
    chosen.path += batched ? "-batched" : "-single";
    chosen.batched_copies = batched;
    const std::uint64_t earlier = swsim_calls("cuMemcpyBatchAsync_v2");
    Engine engine = open(chosen);
    ASSERT_TRUE(save(engine, 1).wait(Level::kCommitted));
    EXPECT_EQ(swsim_calls("cuMemcpyBatchAsync_v2") > earlier, batched);
  }
}

}  // namespace
}  // namespace slackwater::test
