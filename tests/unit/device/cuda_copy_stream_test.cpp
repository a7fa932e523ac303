// Copies of a snapshot that leave in turns, so that the trainer's own copies can pass.
#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "device/cuda/copy_stream.hpp"
#include "unit/device/cuda_trainer.hpp"

namespace slackwater::cuda {
namespace {

class CudaCopyStream : public OnCudaDevice {
 protected:
  static constexpr std::uint64_t kTurnBytes = 100'000;
  static constexpr std::uint64_t kTurns = 10;
  static constexpr std::int64_t kTurnNs = 1'000'000;

  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(OnCudaDevice::SetUp());
    use_turns_of(kTurnBytes);
    set_d2h_speed(kTurnBytes * 1'000'000'000 / kTurnNs);
  }
  void use_turns_of(std::uint64_t turn_bytes, bool batches = true) {
    device_.reset();
    auto driver = std::make_shared<Driver>(*driver_);
    if (!batches) driver->cuMemcpyBatchAsync = nullptr;
    if (!batches) driver->cuMemcpyBatchAsync_v2 = nullptr;
    auto device = CudaDevice::open(driver, 0, turn_bytes);
    ASSERT_TRUE(device.has_value()) << device.error().to_string();
    device_ = std::move(*device);
  }

  // A copy of the trainer that is queued while the device waits with all turns of a snapshot. Returns how long before
  // the snapshot's last copy it is over, on the simulated clock; negative if it is over later.
  std::int64_t small_copy_ahead_of_the_end(DeviceCopies& copies, const DeviceTensor& tensor) {
    const PinnedBuffer host(tensor.memory.size_bytes());
    const PinnedBuffer word(4);
    CUevent small = nullptr;
    CUevent all = nullptr;
    must(cuEventCreate(&small, kEventBlockingSync));
    must(cuEventCreate(&all, kEventBlockingSync));
    must(swsim_stall_copies(0, SWSIM_STALL_ON));
    EXPECT_TRUE(queue_all(copies, tensor.memory, host.data()));
    must(cuMemcpyDtoHAsync_v2(word.data(), tensor.address, 4, stream_));
    must(cuEventRecord(small, stream_));
    const auto copied = copies.record_event();
    EXPECT_TRUE(copied.has_value() && device_->stream_wait(stream_handle(), **copied));
    must(cuEventRecord(all, stream_));
    must(swsim_stall_copies(0, SWSIM_STALL_OFF));
    must(cuEventSynchronize(all));
    EXPECT_EQ(host.copy(), tensor.twin);
    const std::int64_t ahead = swsim_event_time_ns(all) - swsim_event_time_ns(small);
    must(cuEventDestroy_v2(small));
    must(cuEventDestroy_v2(all));
    return ahead;
  }
};

TEST_F(CudaCopyStream, ACopyOfTheTrainerPassesAfterOneTurn) {
  const auto tensor = DeviceTensor::flat(kTurns * kTurnBytes);
  const auto copies = begun(nullptr);
  EXPECT_GE(small_copy_ahead_of_the_end(*copies, tensor), static_cast<std::int64_t>(kTurns - 1) * kTurnNs);
}

TEST_F(CudaCopyStream, AfterTheFenceItWaitsForAllOfFewCopies) {
  const auto tensor = DeviceTensor::flat(kTurns * kTurnBytes);
  const auto copies = begun(nullptr);
  copies->at_once();
  const std::uint64_t earlier = swsim_calls("cuMemcpyDtoHAsync_v2");
  EXPECT_LT(small_copy_ahead_of_the_end(*copies, tensor), kTurnNs);
  EXPECT_EQ(swsim_calls("cuMemcpyDtoHAsync_v2"), earlier + 2) << "one for the snapshot, one for the trainer";
}

TEST_F(CudaCopyStream, WithoutTurnsItWaitsForAll) {
  use_turns_of(0);
  const auto tensor = DeviceTensor::flat(kTurns * kTurnBytes);
  const auto copies = begun(nullptr);
  EXPECT_LT(small_copy_ahead_of_the_end(*copies, tensor), kTurnNs);
}

TEST_F(CudaCopyStream, ATurnHasNoMoreThan64Copies) {
  constexpr std::size_t kPieces = 3 * kTurnCopies;
  const auto tensor = DeviceTensor::flat(2 * kPieces);
  const PinnedBuffer host(kPieces);
  std::vector<CopyPiece> pieces;
  for (std::size_t i = 0; i < kPieces; ++i) pieces.push_back({&tensor.memory, 2 * i, 1, host.data() + i});
  const auto copies = begun(nullptr);
  const std::uint64_t earlier = swsim_calls("cuMemcpyBatchAsync_v2");
  ASSERT_TRUE(copies->queue_copies(pieces));
  EXPECT_EQ(swsim_calls("cuMemcpyBatchAsync_v2"), earlier + 3);
  EXPECT_GE(copies->operations(kPieces, kPieces), 3u);
  ASSERT_TRUE(wait_for(*copies));
}

// The order of one stream, with turns that end anywhere, copies of any form, two threads, and a fence in between.
TEST_F(CudaCopyStream, AnUpdateBehindTheLastPointOvertakesNoCopyOfAnyTurn) {
  std::mt19937_64 random(15);
  set_d2h_speed(400'000'000);
  for (int round = 0; round < 25; ++round) {
    use_turns_of(1 + random() % 3'000);
    const auto flat = DeviceTensor::flat(1 + random() % 20'000, random());
    const auto wide = static_cast<std::int64_t>(1 + random() % 60);
    const DeviceTensor rows({nullptr, 4, {50, wide}, {wide + 3, 1}}, random());
    const PinnedBuffer flat_host(flat.memory.size_bytes());
    const PinnedBuffer rows_host(rows.memory.size_bytes());
    const auto copies = begun(recorded(), {&flat.memory, &rows.memory});
    {
      const std::jthread other([&] { EXPECT_TRUE(queue_all(*copies, rows.memory, rows_host.data())); });
      const std::uint64_t middle = random() % (flat.twin.size() + 1);
      const CopyPiece first{&flat.memory, 0, middle, flat_host.data()};
      const CopyPiece last{&flat.memory, middle, flat.twin.size() - middle, flat_host.data() + middle};
      EXPECT_TRUE(copies->queue_copies({&first, 1}));
      if (round % 2 == 0) copies->at_once();
      EXPECT_TRUE(copies->queue_copies({&last, 1}));
    }
    for (const std::uint32_t guard : {0u, 1u}) ASSERT_TRUE(copies->queue_second_sample(guard));
    const auto copied = copies->record_event();
    ASSERT_TRUE(copied.has_value());
    ASSERT_TRUE(device_->stream_wait(stream_handle(), **copied));
    flat.update(stream_);
    rows.update(stream_);
    const auto updated = recorded();
    ASSERT_TRUE((*copied)->wait());
    ASSERT_EQ(flat_host.copy(), flat.twin) << "round " << round;
    ASSERT_EQ(rows_host.copy(), rows.packed_twin()) << "round " << round;
    for (const std::uint32_t guard : {0u, 1u}) ASSERT_EQ(copies->unchanged(guard), true);
    ASSERT_TRUE(updated->wait());
  }
}

TEST_F(CudaCopyStream, ThousandsOfTurnsNeverFillTheDriversQueue) {
  use_turns_of(1, false);
  constexpr std::uint64_t kBytes = 3'000;
  const auto tensor = DeviceTensor::flat(kBytes);
  const PinnedBuffer host(kBytes);
  const auto copies = begun(nullptr);
  must(swsim_stall_copies(0, SWSIM_STALL_ON));
  const std::uint64_t earlier_waits = counters().host_waits;
  std::atomic<bool> over = false;
  Status queued;
  {
    const std::jthread copy_thread([&] {
      queued = queue_all(*copies, tensor.memory, host.data());
      over = true;
    });
    while (!over && counters().host_waits == earlier_waits) std::this_thread::yield();
    EXPECT_FALSE(over) << "all were queued at once";
    must(swsim_stall_copies(0, SWSIM_STALL_OFF));
  }
  ASSERT_TRUE(queued);
  ASSERT_TRUE(wait_for(*copies));
  EXPECT_EQ(host.copy(), tensor.twin);
  EXPECT_EQ(counters().blocked_calls, 0u);
}

TEST_F(CudaCopyStream, EndsOnlyWhenTheCopiesOfBothStreamsHave) {
  const auto tensor = DeviceTensor::flat(kTurns * kTurnBytes);
  const PinnedBuffer host(kTurns * kTurnBytes);
  auto copies = begun(nullptr);
  ASSERT_TRUE(queue_all(*copies, tensor.memory, host.data()));
  copies.reset();
  EXPECT_EQ(host.copy(), tensor.twin);
}

}  // namespace
}  // namespace slackwater::cuda
