#include <optional>
#include <random>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "device/cuda/device_copies.hpp"
#include "unit/device/cuda_trainer.hpp"

namespace slackwater::cuda {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

enum class Batches { kNewForm, kFirstForm, kNone };

class CudaDeviceCopiesTest : public OnCudaDevice {
 protected:
  void use(Batches batches) {
    auto driver = std::make_shared<Driver>(*driver_);
    if (batches != Batches::kNewForm) driver->cuMemcpyBatchAsync_v2 = nullptr;
    if (batches == Batches::kNone) driver->cuMemcpyBatchAsync = nullptr;
    open_device(driver);
  }
  static std::vector<CopyPiece> in_pieces(const StridedMemory& tensor, std::uint64_t piece_bytes, std::byte* to) {
    std::vector<CopyPiece> pieces;
    for (std::uint64_t begin = 0; begin < tensor.size_bytes(); begin += piece_bytes) {
      pieces.push_back({&tensor, begin, std::min(piece_bytes, tensor.size_bytes() - begin), to + begin});
    }
    return pieces;
  }
};

// --- bytes ---

class CudaDeviceCopiesWith : public CudaDeviceCopiesTest, public ::testing::WithParamInterface<Batches> {};

INSTANTIATE_TEST_SUITE_P(Drivers, CudaDeviceCopiesWith,
                         ::testing::Values(Batches::kNewForm, Batches::kFirstForm, Batches::kNone),
                         [](const auto& param) {
                           switch (param.param) {
                             case Batches::kNewForm: return "Since13";
                             case Batches::kFirstForm: return "Since12Point8";
                             case Batches::kNone: return "Older";
                           }
                           return "";
                         });

TEST_P(CudaDeviceCopiesWith, AnySplitOfAnyTensorsBringsTheBytesOfBeforeTheUpdate) {
  use(GetParam());
  set_d2h_speed(400'000'000);
  std::mt19937_64 random(2024);
  for (int round = 0; round < 25; ++round) {
    std::vector<DeviceTensor> tensors;
    std::uint64_t total = 0;
    for (std::uint64_t count = 1 + random() % 5; count > 0; --count) {
      StridedMemory form{nullptr, 1u << (random() % 5), {}, {}};
      if (random() % 2 == 0) {
        form.shape = {static_cast<std::int64_t>(1 + random() % 3000)};
      } else {
        const auto width = static_cast<std::int64_t>(1 + random() % 40);
        form.shape = {static_cast<std::int64_t>(1 + random() % 5), static_cast<std::int64_t>(1 + random() % 9), width};
        form.strides = {width * 20, width + static_cast<std::int64_t>(random() % 3), 1};
        if (random() % 3 == 0) std::swap(form.strides[1], form.strides[2]);
      }
      tensors.emplace_back(form, random());
      total += form.size_bytes();
    }
    PinnedBuffer host(total);
    std::vector<CopyPiece> pieces;
    std::vector<std::byte> expected;
    std::byte* to = host.data();
    for (const DeviceTensor& tensor : tensors) {
      const auto packed = tensor.packed_twin();
      expected.insert(expected.end(), packed.begin(), packed.end());
      for (std::uint64_t begin = 0; begin < packed.size();) {
        const std::uint64_t size = std::min<std::uint64_t>(1 + random() % 5'000, packed.size() - begin);
        pieces.push_back({&tensor.memory, begin, size, to});
        begin += size;
        to += size;
      }
    }
    std::ranges::shuffle(pieces, random);

    const auto copies = begun(recorded());
    const std::span all(pieces);
    const std::size_t middle = random() % (pieces.size() + 1);
    {
      const std::jthread other([&] { EXPECT_TRUE(copies->queue_copies(all.first(middle))); });
      EXPECT_TRUE(copies->queue_copies(all.subspan(middle)));
    }
    const auto copied = copies->record_event();
    ASSERT_TRUE(copied.has_value());
    ASSERT_TRUE(device_->stream_wait(stream_handle(), **copied));
    for (const DeviceTensor& tensor : tensors) tensor.update(stream_);
    const auto updated = recorded();
    ASSERT_TRUE((*copied)->wait());
    ASSERT_EQ(host.copy(), expected) << "round " << round;
    ASSERT_TRUE(updated->wait());
    for (const DeviceTensor& tensor : tensors) {
      ASSERT_TRUE(tensor.twin.size() < 4 || tensor.now() != tensor.twin) << "the update was lost";
    }
  }
}

TEST_F(CudaDeviceCopiesTest, ManyCopiesLeaveInOneBatchCall) {
  for (const auto& [batches, symbol] :
       {std::pair{Batches::kNewForm, "cuMemcpyBatchAsync_v2"}, std::pair{Batches::kFirstForm, "cuMemcpyBatchAsync"}}) {
    use(batches);
    const auto tensor = DeviceTensor::flat(10'000);
    PinnedBuffer host(10'000);
    const std::uint64_t before = swsim_calls(symbol);
    const std::uint64_t singles = swsim_calls("cuMemcpyDtoHAsync_v2");
    const auto copies = begun(nullptr);
    ASSERT_TRUE(copies->queue_copies(in_pieces(tensor.memory, 1'000, host.data())));
    ASSERT_TRUE(wait_for(*copies));
    EXPECT_EQ(swsim_calls(symbol) - before, 1u);
    EXPECT_EQ(swsim_calls("cuMemcpyDtoHAsync_v2"), singles);
    EXPECT_EQ(host.copy(), tensor.twin);
  }
}

TEST_F(CudaDeviceCopiesTest, MoreCopiesThanABatchHoldsLeaveInSeveral) {
  const auto tensor = DeviceTensor::flat(2'500);
  PinnedBuffer host(2'500);
  const auto copies = begun(nullptr);
  copies->at_once();
  ASSERT_TRUE(copies->queue_copies(in_pieces(tensor.memory, 1, host.data())));
  ASSERT_TRUE(wait_for(*copies));
  EXPECT_EQ(swsim_calls("cuMemcpyBatchAsync_v2"), 3u);
  EXPECT_EQ(host.copy(), tensor.twin);
}

TEST_F(CudaDeviceCopiesTest, ABatchTheDriverRefusesIsCopiedOneByOneFromThenOn) {
  const auto tensor = DeviceTensor::flat(10'000);
  PinnedBuffer host(10'000);
  swsim_fail_call("cuMemcpyBatchAsync_v2", 1, static_cast<int>(CUresult::kNotSupported), 0);
  const auto copies = begun(nullptr);
  for (int i = 0; i < 2; ++i) {
    std::ranges::fill(host.bytes(), std::byte{0});
    ASSERT_TRUE(copies->queue_copies(in_pieces(tensor.memory, 1'000, host.data())));
    ASSERT_TRUE(wait_for(*copies));
    EXPECT_EQ(host.copy(), tensor.twin);
  }
  EXPECT_EQ(swsim_calls("cuMemcpyBatchAsync_v2"), 1u);
}

TEST_F(CudaDeviceCopiesTest, WithoutBatchesNeighboursAreMerged) {
  use(Batches::kNone);
  const auto tensor = DeviceTensor::flat(10'000);
  PinnedBuffer host(10'000);
  auto pieces = in_pieces(tensor.memory, 1'000, host.data());
  pieces.erase(pieces.begin() + 4);
  const std::uint64_t before = swsim_calls("cuMemcpyDtoHAsync_v2");
  const auto copies = begun(nullptr);
  ASSERT_TRUE(copies->queue_copies(pieces));
  ASSERT_TRUE(wait_for(*copies));
  EXPECT_EQ(swsim_calls("cuMemcpyDtoHAsync_v2") - before, 2u);
  EXPECT_TRUE(std::ranges::equal(host.bytes().first(4'000), std::span(tensor.twin).first(4'000)));
  EXPECT_TRUE(
      std::ranges::all_of(host.bytes().subspan(4'000, 1'000), [](std::byte b) { return b == std::byte{0xee}; }));
  EXPECT_TRUE(std::ranges::equal(host.bytes().subspan(5'000), std::span(tensor.twin).subspan(5'000)));
}

TEST_F(CudaDeviceCopiesTest, NeighboursOnTheDeviceThatLieApartOnTheHostAreNotMerged) {
  use(Batches::kNone);
  const auto tensor = DeviceTensor::flat(3'000);
  PinnedBuffer host(4'000);
  const std::vector<CopyPiece> pieces{{&tensor.memory, 0, 1'000, host.data()},
                                      {&tensor.memory, 1'000, 1'000, host.data() + 2'000},  // a gap
                                      {&tensor.memory, 2'000, 1'000, host.data() + 3'000}};
  const auto copies = begun(nullptr);
  ASSERT_TRUE(copies->queue_copies(pieces));
  ASSERT_TRUE(wait_for(*copies));
  EXPECT_TRUE(std::ranges::equal(host.bytes().first(1'000), std::span(tensor.twin).first(1'000)));
  EXPECT_TRUE(
      std::ranges::all_of(host.bytes().subspan(1'000, 1'000), [](std::byte b) { return b == std::byte{0xee}; }));
  EXPECT_TRUE(std::ranges::equal(host.bytes().subspan(2'000), std::span(tensor.twin).subspan(1'000)));
}

TEST_F(CudaDeviceCopiesTest, NeighboursThatMayNotBeMergedAreCopiedApart) {
  use(Batches::kNone);
  const auto tensor = DeviceTensor::flat(4'000);
  PinnedBuffer host(4'000);
  swsim_fail_call("cuMemcpyDtoHAsync_v2", 1, static_cast<int>(CUresult::kInvalidValue), 0);
  const auto copies = begun(nullptr);
  ASSERT_TRUE(copies->queue_copies(in_pieces(tensor.memory, 1'000, host.data())));
  ASSERT_TRUE(wait_for(*copies));
  EXPECT_EQ(swsim_calls("cuMemcpyDtoHAsync_v2"), 5u);
  EXPECT_EQ(host.copy(), tensor.twin);
}

TEST_F(CudaDeviceCopiesTest, RowsOfAStridedTensorAreOne2dCopyOrIfRefusedOneEach) {
  const DeviceTensor tensor({nullptr, 4, {50, 20}, {32, 1}});
  PinnedBuffer host(tensor.memory.size_bytes());
  const auto copies = begun(nullptr);
  ASSERT_TRUE(queue_all(*copies, tensor.memory, host.data()));
  ASSERT_TRUE(wait_for(*copies));
  EXPECT_EQ(swsim_calls("cuMemcpy2DAsync_v2"), 1u);
  EXPECT_EQ(swsim_calls("cuMemcpyDtoHAsync_v2"), 0u);
  EXPECT_EQ(host.copy(), tensor.packed_twin());

  std::ranges::fill(host.bytes(), std::byte{0});
  swsim_fail_call("cuMemcpy2DAsync_v2", 1, static_cast<int>(CUresult::kInvalidValue), 0);
  ASSERT_TRUE(queue_all(*copies, tensor.memory, host.data()));
  ASSERT_TRUE(wait_for(*copies));
  EXPECT_EQ(swsim_calls("cuMemcpyDtoHAsync_v2"), 50u);
  EXPECT_EQ(host.copy(), tensor.packed_twin());
}

// --- order ---

TEST_F(CudaDeviceCopiesTest, CopiesAndFirstSamplesRunAfterTheProducer) {
  const auto tensor = DeviceTensor::flat(50'000);
  PinnedBuffer host(50'000);
  must(swsim_launch_fill(stream_, tensor.address, 50'000, 0x5a, 10'000'000));
  const auto copies = begun(recorded(), {&tensor.memory});
  ASSERT_TRUE(queue_all(*copies, tensor.memory, host.data()));
  ASSERT_TRUE(copies->queue_second_sample(0));
  ASSERT_TRUE(wait_for(*copies));
  EXPECT_TRUE(std::ranges::all_of(host.bytes(), [](std::byte b) { return b == std::byte{0x5a}; }));
  EXPECT_EQ(copies->unchanged(0), true);
}

TEST_F(CudaDeviceCopiesTest, StreamWaitOrdersAnUpdateAfterCopiesThatHaveNotBegun) {
  const auto tensor = DeviceTensor::flat(50'000);
  PinnedBuffer host(50'000);
  must(swsim_stall_copies(0, 1));
  const auto copies = begun(recorded());
  ASSERT_TRUE(queue_all(*copies, tensor.memory, host.data()));
  const auto copied = copies->record_event();
  ASSERT_TRUE(copied.has_value());
  ASSERT_TRUE(device_->stream_wait(stream_handle(), **copied));
  tensor.update(stream_);
  const auto updated = recorded();
  EXPECT_EQ(tensor.now(), tensor.twin) << "the update waits";
  must(swsim_stall_copies(0, 0));
  ASSERT_TRUE(updated->wait());
  EXPECT_EQ(host.copy(), tensor.twin);
  EXPECT_NE(tensor.now(), tensor.twin);
}

TEST_F(CudaDeviceCopiesTest, EndsOnlyWhenItsCopiesHave) {
  const auto tensor = DeviceTensor::flat(50'000);
  PinnedBuffer host(50'000);
  set_d2h_speed(2'000'000);
  auto copies = begun(nullptr, {&tensor.memory});
  ASSERT_TRUE(queue_all(*copies, tensor.memory, host.data()));
  copies.reset();
  EXPECT_EQ(host.copy(), tensor.twin);
  EXPECT_EQ(counters().spinning_waits, 0u);
}

// A producer that finishes when the test says so: copies of the second device, which are stalled until then.
class CudaDeviceCopiesWithGate : public OnCudaDevice {
 protected:
  CudaDeviceCopiesWithGate() : OnCudaDevice(2) {}
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(OnCudaDevice::SetUp());
    auto second = CudaDevice::open(driver_, 1);
    ASSERT_TRUE(second.has_value()) << second.error().to_string();
    second_ = std::move(*second);
    const Scope scope(second_->context());
    tensor_.emplace(DeviceTensor::flat(100));
    buffer_.emplace(100);
    must(swsim_stall_copies(1, 1));
    auto copies = second_->begin(nullptr, {}, 1);
    ASSERT_TRUE(copies.has_value());
    copies_ = std::move(*copies);
    ASSERT_TRUE(queue_all(*copies_, tensor_->memory, buffer_->data()));
    auto producer = copies_->record_event();
    ASSERT_TRUE(producer.has_value());
    producer_ = std::move(*producer);
  }
  void TearDown() override {
    finish_producer();
    copies_.reset();
    producer_.reset();
    {
      const Scope scope(second_->context());
      buffer_.reset();
      tensor_.reset();
    }
    second_.reset();
    OnCudaDevice::TearDown();
  }
  static void finish_producer() { must(swsim_stall_copies(1, 0)); }

  std::shared_ptr<Event> producer_;

 private:
  std::unique_ptr<CudaDevice> second_;
  std::optional<DeviceTensor> tensor_;
  std::optional<PinnedBuffer> buffer_;
  std::unique_ptr<DeviceCopies> copies_;
};

TEST_F(CudaDeviceCopiesWithGate, CopiesOfAnEarlierSnapshotDoNotWaitForALaterOnesProducer) {
  const auto tensor = DeviceTensor::flat(50'000);
  PinnedBuffer host(50'000);
  const auto first = begun(recorded());
  const auto second = begun(producer_, {&tensor.memory});
  ASSERT_TRUE(queue_all(*first, tensor.memory, host.data()));
  ASSERT_TRUE(wait_for(*first)) << "or it hangs";
  EXPECT_EQ(host.copy(), tensor.twin);

  std::ranges::fill(host.bytes(), std::byte{0xee});
  ASSERT_TRUE(queue_all(*second, tensor.memory, host.data()));
  const auto copied = second->record_event();
  ASSERT_TRUE(copied.has_value());
  finish_producer();
  ASSERT_TRUE((*copied)->wait());
  EXPECT_EQ(host.copy(), tensor.twin);
}

TEST_F(CudaDeviceCopiesWithGate, AnUpdateThatWaitsForTheCopiesAlsoWaitsForTheFirstSamples) {
  const auto tensor = DeviceTensor::flat(50'000);
  PinnedBuffer host(50'000);
  const auto before = begun(producer_, {&tensor.memory});  // its first sample keeps the next one waiting
  const auto copies = begun(recorded(), {&tensor.memory});
  ASSERT_TRUE(queue_all(*copies, tensor.memory, host.data()));
  ASSERT_TRUE(copies->queue_second_sample(0));
  const auto copied = copies->record_event();
  ASSERT_TRUE(copied.has_value());
  ASSERT_TRUE(device_->stream_wait(stream_handle(), **copied));
  tensor.update(stream_);
  finish_producer();
  ASSERT_TRUE((*copied)->wait());
  EXPECT_EQ(copies->unchanged(0), true);
  EXPECT_EQ(host.copy(), tensor.twin);
}

// --- the torn-capture guard ---

class CudaSamples : public CudaDeviceCopiesTest {
 protected:
  // Whether the guard notices `write`, which happens between the first sample and the copies.
  template <class Write>
  bool notices(DeviceTensor& tensor, Write write) {
    PinnedBuffer host(tensor.memory.size_bytes());
    const auto copies = begun(recorded(), {&tensor.memory});
    must(cuCtxSynchronize());
    write();
    EXPECT_TRUE(queue_all(*copies, tensor.memory, host.data()));
    EXPECT_TRUE(copies->queue_second_sample(0));
    EXPECT_TRUE(wait_for(*copies));
    const auto unchanged = copies->unchanged(0);
    EXPECT_TRUE(unchanged.has_value());
    return unchanged == false;
  }
};

TEST_F(CudaSamples, NoticeAWriteBeforeTheFenceAndNothingElse) {
  for (const StridedMemory& form : {StridedMemory{nullptr, 1, {100'000}, {}}, StridedMemory{nullptr, 1, {129}, {}},
                                    StridedMemory{nullptr, 4, {32}, {}}, StridedMemory{nullptr, 4, {40, 30}, {1, 40}},
                                    StridedMemory{nullptr, 4, {4, 5}, {7, 1}}, StridedMemory{nullptr, 16, {90}, {2}}}) {
    DeviceTensor tensor(form);
    EXPECT_FALSE(notices(tensor, [] {}));
    EXPECT_TRUE(notices(tensor, [&] {
      tensor.update(stream_);
      must(cuStreamSynchronize(stream_));
    })) << form.size_bytes();
  }
}

TEST_F(CudaSamples, EveryByteOfASmallTensorCounts) {
  DeviceTensor tensor = DeviceTensor::flat(128);
  for (const std::size_t place : {0u, 63u, 127u}) {
    EXPECT_TRUE(notices(tensor, [&] {
      tensor.twin[place] ^= std::byte{1};
      tensor.write();
    })) << place;
  }
}

TEST_F(CudaSamples, AChangeOfMoreThanASixteenthInOnePieceIsAlwaysNoticed) {
  DeviceTensor tensor = DeviceTensor::flat(16'000);
  for (std::size_t begin = 0; begin + 1'010 <= 16'000; begin += 1'499) {
    EXPECT_TRUE(notices(tensor,
                        [&] {
                          for (std::size_t i = begin; i < begin + 1'010; ++i) tensor.twin[i] ^= std::byte{1};
                          tensor.write();
                        }))
        << "from " << begin;
  }
}

TEST_F(CudaSamples, ReachEveryByteWithSomeSeed) {
  StridedMemory tensor{nullptr, 1, {200}, {}};
  std::vector<int> seen(200);
  std::vector<std::byte> base(200);
  tensor.data = base.data();
  for (std::uint64_t seed = 0; seed < 2'000; ++seed) {
    std::vector<Block> blocks;
    ASSERT_TRUE(add_sample(tensor, seed, nullptr, blocks));
    ASSERT_EQ(blocks.size(), 1u);
    for (std::uint64_t row = 0; row < blocks[0].rows; ++row) {
      for (std::uint64_t i = 0; i < blocks[0].width; ++i) {
        const auto place = static_cast<std::size_t>(row_of(blocks[0], row).strided + i - base.data());
        ASSERT_LT(place, seen.size());
        ++seen[place];
      }
    }
  }
  EXPECT_EQ(std::ranges::count(seen, 0), 0);
}

TEST_F(CudaSamples, TakeOneCallPerTensorAndDoNotWaitForEarlierCopies) {
  std::vector<DeviceTensor> tensors;
  std::vector<const StridedMemory*> guarded;
  for (int i = 0; i < 20; ++i) tensors.push_back(DeviceTensor::flat(5'000));
  for (const DeviceTensor& tensor : tensors) guarded.push_back(&tensor.memory);
  const auto copies = begun(recorded(), guarded);
  EXPECT_EQ(swsim_calls("cuMemcpy2DAsync_v2"), 20u);
  EXPECT_EQ(swsim_calls("cuMemcpyDtoHAsync_v2"), 0u);
}

// Thousands of them take milliseconds, and the engine serves what is ready on one stream back to back.
TEST_F(CudaSamples, ACopyOfTheTrainerPassesBetweenThem) {
  constexpr std::size_t kTensors = 200;
  constexpr std::int64_t kLatencyNs = 50'000;
  swsim_device_config config{};
  must(swsim_get_config(0, &config));
  config.copy_latency_ns = kLatencyNs;
  must(swsim_set_config(0, &config));
  const auto tensor = DeviceTensor::flat(5'000);
  const std::vector<const StridedMemory*> guarded(kTensors, &tensor.memory);
  const PinnedBuffer word(4);
  CUevent small = nullptr;
  CUevent all = nullptr;
  must(cuEventCreate(&small, kEventBlockingSync));
  must(cuEventCreate(&all, kEventBlockingSync));
  must(swsim_stall_copies(0, SWSIM_STALL_ON));
  {
    const auto copies = begun(nullptr, guarded);
    must(cuMemcpyDtoHAsync_v2(word.data(), tensor.address, 4, stream_));
    must(cuEventRecord(small, stream_));
    ASSERT_TRUE(copies->queue_second_sample(0));  // behind the first samples
    const auto sampled = copies->record_event();
    ASSERT_TRUE(sampled.has_value() && device_->stream_wait(stream_handle(), **sampled));
    must(cuEventRecord(all, stream_));
    must(swsim_stall_copies(0, SWSIM_STALL_OFF));
    must(cuEventSynchronize(all));
  }
  EXPECT_GE(swsim_event_time_ns(all) - swsim_event_time_ns(small), (kTensors - 2 * kTurnSamples) * kLatencyNs);
  must(cuEventDestroy_v2(small));
  must(cuEventDestroy_v2(all));
}

TEST_F(CudaSamples, AnUnknownTensorOrOneWithoutASecondSampleIsAnError) {
  const auto tensor = DeviceTensor::flat(5'000);
  const auto copies = begun(nullptr, {&tensor.memory});
  EXPECT_FALSE(copies->unchanged(0).has_value());
  EXPECT_FALSE(copies->unchanged(1).has_value());
  EXPECT_FALSE(copies->queue_second_sample(1).has_value());
}

// --- errors ---

TEST_F(CudaDeviceCopiesTest, AFailedCopyFailsTheWaitWithTheDevicesError) {
  device_lost_ = true;
  const auto tensor = DeviceTensor::flat(50'000);
  PinnedBuffer host(50'000);
  must(swsim_fail_copy(0, 1, static_cast<int>(CUresult::kIllegalAddress)));
  const auto copies = begun(nullptr);
  ASSERT_TRUE(queue_all(*copies, tensor.memory, host.data()));
  const Status waited = wait_for(*copies);
  ASSERT_FALSE(waited.has_value());
  EXPECT_EQ(waited.error().kind, ErrorKind::kDevice);
  EXPECT_THAT(waited.error().to_string(),
              AllOf(HasSubstr("cuda:0"), HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS"), HasSubstr("restore")));
  const Status again = queue_all(*copies, tensor.memory, host.data());
  ASSERT_FALSE(again.has_value());
  EXPECT_THAT(again.error().to_string(), HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS"));
}

TEST_F(CudaDeviceCopiesTest, ACallThatFailsOnceLeavesNothingBehindAndTheNextSucceeds) {
  const auto tensor = DeviceTensor::flat(50'000);
  PinnedBuffer host(50'000);
  for (const char* symbol : {"cuCtxPushCurrent_v2", "cuThreadExchangeStreamCaptureMode", "cuMemHostAlloc",
                             "cuStreamWaitEvent", "cuEventRecord", "cuMemcpy2DAsync_v2"}) {
    open_device(driver_);  // nothing pooled yet
    const auto produced = recorded();
    swsim_fail_call(symbol, 1, static_cast<int>(CUresult::kOutOfMemory), 0);
    const auto refused = device_->begin(produced, std::vector{&tensor.memory}, 1);
    ASSERT_FALSE(refused.has_value()) << symbol;
    EXPECT_THAT(refused.error().to_string(), HasSubstr(symbol));
    const auto copies = begun(nullptr, {&tensor.memory});
    ASSERT_TRUE(queue_all(*copies, tensor.memory, host.data())) << symbol;
    ASSERT_TRUE(wait_for(*copies));
    EXPECT_EQ(host.copy(), tensor.twin);
  }
}

TEST_F(CudaDeviceCopiesTest, IfAnEventCannotBeRecordedTheDestructorStillWaitsForTheCopies) {
  const auto tensor = DeviceTensor::flat(50'000);
  PinnedBuffer host(50'000);
  set_d2h_speed(50'000'000);
  auto copies = begun(nullptr);
  ASSERT_TRUE(queue_all(*copies, tensor.memory, host.data()));
  swsim_fail_call("cuEventRecord", 1, static_cast<int>(CUresult::kOutOfMemory), 0);
  EXPECT_FALSE(copies->record_event().has_value());
  swsim_fail_call("cuEventRecord", 1, static_cast<int>(CUresult::kOutOfMemory), 0);
  copies.reset();
  EXPECT_EQ(host.copy(), tensor.twin);
}

}  // namespace
}  // namespace slackwater::cuda
