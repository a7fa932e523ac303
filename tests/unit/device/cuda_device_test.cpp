#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/device/cuda_trainer.hpp"

namespace slackwater::cuda {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class CudaDeviceTest : public OnCudaDevice {};

std::vector<StridedMemory> forms() {
  return {{nullptr, 1, {100'000}, {}},           {nullptr, 1, {100}, {}},
          {nullptr, 4, {300, 50}, {64, 1}},      {nullptr, 2, {30, 40}, {1, 30}},
          {nullptr, 4, {6, 10, 8}, {400, 9, 1}}, {nullptr, 16, {500}, {3}},
          {nullptr, 4, {20, 30}, {0, 1}},        {nullptr, 8, {}, {}}};
}

TEST_F(CudaDeviceTest, BytesOfEveryFormReachTheHost) {
  for (const StridedMemory& form : forms()) {
    const DeviceTensor tensor(form);
    PinnedBuffer host(tensor.memory.size_bytes());
    const CopyPiece piece{&tensor.memory, 0, host.bytes().size(), host.data()};
    ASSERT_TRUE(device_->copy_to_host({&piece, 1}));
    EXPECT_EQ(host.copy(), tensor.packed_twin());
  }
}

TEST_F(CudaDeviceTest, BytesOfEveryFormReachTheDeviceAndNothingAroundThem) {
  for (const StridedMemory& form : forms()) {
    DeviceTensor tensor(form);
    StridedMemory on_host = tensor.memory;
    on_host.data = tensor.twin.data();
    PinnedBuffer host(form.size_bytes());
    std::ranges::copy(random_bytes(host.bytes().size(), 9), host.data());
    const CopyPiece to_device{&tensor.memory, 0, host.bytes().size(), host.data()};
    const CopyPiece to_twin{&on_host, 0, host.bytes().size(), host.data()};
    ASSERT_TRUE(device_->copy_from_host({&to_device, 1}));
    ASSERT_TRUE(make_host_device()->copy_from_host({&to_twin, 1}));
    EXPECT_EQ(tensor.now(), tensor.twin);
  }
}

TEST_F(CudaDeviceTest, ManyTensorsReachTheDeviceInOneCall) {
  std::vector<DeviceTensor> tensors;
  for (int i = 0; i < 20; ++i) tensors.push_back(DeviceTensor::flat(1'000 + i, 300 + i));
  PinnedBuffer host(20 * 2'000);
  std::ranges::copy(random_bytes(host.bytes().size(), 13), host.data());
  std::vector<CopyPiece> pieces;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    pieces.push_back({&tensors[i].memory, 0, tensors[i].twin.size(), host.data() + i * 2'000});
  const std::vector<std::byte> given = host.copy();
  const std::uint64_t one_by_one = swsim_calls("cuMemcpyHtoDAsync_v2");
  ASSERT_TRUE(device_->copy_from_host(pieces));
  EXPECT_EQ(swsim_calls("cuMemcpyHtoDAsync_v2"), one_by_one) << "a batch was refused";
  EXPECT_EQ(host.copy(), given) << "copied the wrong way";
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto expected = host.bytes().subspan(i * 2'000, tensors[i].twin.size());
    EXPECT_TRUE(std::ranges::equal(tensors[i].now(), expected)) << i;
  }
}

TEST_F(CudaDeviceTest, PageableMemoryIsCopiedRightToo) {
  const auto tensor = DeviceTensor::flat(50'000);
  std::vector<std::byte> host(50'000);
  const CopyPiece out{&tensor.memory, 0, host.size(), host.data()};
  ASSERT_TRUE(device_->copy_to_host({&out, 1}));
  EXPECT_EQ(host, tensor.twin);
  std::ranges::copy(random_bytes(host.size(), 5), host.begin());
  ASSERT_TRUE(device_->copy_from_host({&out, 1}));
  EXPECT_EQ(tensor.now(), host);
}

TEST_F(CudaDeviceTest, FingerprintsEqualThoseOfTheSameBytesOnTheHost) {
  const auto host = make_host_device();
  std::vector<StridedMemory> all = forms();
  all.push_back({nullptr, 1, {3 * (1 << 20) + 77}, {}});
  all.push_back({nullptr, 4, {0}, {}});
  for (const StridedMemory& form : all) {
    DeviceTensor tensor(form.size_bytes() > 0 ? form : StridedMemory{nullptr, 4, {1}, {}});
    StridedMemory on_device = form;
    on_device.data = tensor.memory.data;
    StridedMemory on_host = form;
    on_host.data = tensor.twin.data();
    for (const bool whole : {false, true}) {
      const auto there = device_->fingerprint(on_device, 11, whole);
      ASSERT_TRUE(there.has_value()) << there.error().to_string();
      EXPECT_EQ(*there, host->fingerprint(on_host, 11, whole)) << form.size_bytes() << (whole ? " whole" : "");
    }
  }
}

TEST_F(CudaDeviceTest, SeveralThreadsPlaceBytesAtOnce) {
  std::vector<DeviceTensor> tensors;
  for (int i = 0; i < 4; ++i) tensors.push_back(DeviceTensor::flat(40'000, 100 + i));
  PinnedBuffer host(4 * 40'000);
  std::ranges::copy(random_bytes(host.bytes().size(), 77), host.data());
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < 4; ++i) {
      threads.emplace_back([&, i] {
        for (std::uint64_t begin = 0; begin < 40'000; begin += 8'000) {
          const CopyPiece piece{&tensors[i].memory, begin, 8'000, host.data() + i * 40'000 + begin};
          EXPECT_TRUE(device_->copy_from_host({&piece, 1}));
        }
      });
    }
  }
  for (std::size_t i = 0; i < 4; ++i) {
    const auto expected = host.bytes().subspan(i * 40'000, 40'000);
    EXPECT_TRUE(std::ranges::equal(tensors[i].now(), expected)) << i;
  }
}

TEST_F(CudaDeviceTest, EarlyCopiesKeepWhatAnUpdateOverwrites) {
  for (const bool legacy : {false, true}) {
    CUstream const stream = legacy ? nullptr : stream_;
    const auto batches = [] { return swsim_calls("cuMemcpyBatchAsync_v2") + swsim_calls("cuMemcpyBatchAsync"); };
    const std::uint64_t batches_before = batches();
    std::vector<DeviceTensor> tensors;
    for (const StridedMemory& form : forms()) tensors.emplace_back(form);
    std::vector<StridedMemory> memories;
    for (const DeviceTensor& tensor : tensors) memories.push_back(tensor.memory);
    memories.push_back({nullptr, 4, {0}, {}});

    must(swsim_launch_delay(stream, 5'000'000));
    const std::uint64_t waits_before = counters().host_waits;
    auto early = device_->copy_early(memories, reinterpret_cast<StreamHandle>(stream));
    ASSERT_TRUE(early.has_value()) << early.error().to_string();
    EXPECT_EQ(counters().host_waits, waits_before) << "the CPU was to go on";
    EXPECT_GT(batches(), batches_before) << "the copies do not run on the trainer's stream, which may take no batches";
    for (const DeviceTensor& tensor : tensors) tensor.update(stream);
    ASSERT_EQ((*early)->addresses().size(), memories.size());
    EXPECT_EQ((*early)->addresses().back(), nullptr);
    ASSERT_TRUE((*early)->filled()->wait());
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const std::byte* const from = (*early)->addresses()[i];
      EXPECT_EQ(Bytes(from, from + memories[i].size_bytes()), tensors[i].packed_twin()) << i;
    }
  }
}

TEST_F(CudaDeviceTest, ThousandsOfEarlyCopiesAreOneCallAndLeaveTheTrainersQueueAlone) {
  const auto tensor = DeviceTensor::flat(1'000);
  const std::vector<StridedMemory> memories(1'000, tensor.memory);
  must(swsim_stall_copies(0, SWSIM_STALL_ON));
  const std::uint64_t single = swsim_calls("cuMemcpyDtoHAsync_v2");
  const auto early = device_->copy_early(memories, 0);
  ASSERT_TRUE(early.has_value()) << early.error().to_string();
  EXPECT_EQ(swsim_calls("cuMemcpyDtoHAsync_v2"), single);
  EXPECT_LE(counters().pending, 8u);
  must(swsim_stall_copies(0, SWSIM_STALL_OFF));
  ASSERT_TRUE((*early)->filled()->wait());
}

TEST_F(CudaDeviceTest, MemoryOfEarlyCopiesIsUsedAgainAndGrowsWhenItMust) {
  const auto small = DeviceTensor::flat(1'000);
  const auto large = DeviceTensor::flat(4'000'000);
  const auto copy_early = [&](const DeviceTensor& tensor) {
    EXPECT_TRUE(device_->copy_early({&tensor.memory, 1}, stream_handle()).has_value());
  };
  const std::uint64_t before = swsim_calls("cuMemHostAlloc");
  for (int i = 0; i < 10; ++i) copy_early(small);
  EXPECT_EQ(swsim_calls("cuMemHostAlloc"), before) << "made when the device was opened";
  const std::uint64_t registrations = counters().registrations;
  for (int i = 0; i < 10; ++i) copy_early(large);
  for (int i = 0; i < 10; ++i) copy_early(small);
  EXPECT_EQ(swsim_calls("cuMemHostAlloc") - before, 1u);
  EXPECT_EQ(counters().registrations, registrations) << "the one that was outgrown is gone";
}

TEST_F(CudaDeviceTest, MemoryOfEarlyCopiesIsNotGivenAwayBeforeTheyAreFilled) {
  const auto tensor = DeviceTensor::flat(1'000);
  must(swsim_launch_delay(stream_, 5'000'000));
  {
    const auto early = device_->copy_early({&tensor.memory, 1}, stream_handle());
  }
  EXPECT_EQ(counters().pending, 0u);
}

TEST_F(CudaDeviceTest, NothingNeedsDeviceMemory) {
  const auto tensor = DeviceTensor::flat(1 << 20);
  const std::uint64_t before = swsim_calls("cuMemAlloc_v2");
  const auto early = device_->copy_early({&tensor.memory, 1}, stream_handle());
  ASSERT_TRUE(early.has_value()) << early.error().to_string();
  const ReplicaPlaces places = replica_places(tensor.memory, 1 << 20, 3, kMaxReplicaSamples, false);
  const auto samples = device_->sample({&places, 1}, stream_handle());
  ASSERT_TRUE(samples.has_value()) << samples.error().to_string();
  EXPECT_TRUE((*samples)->digests().has_value());
  EXPECT_TRUE(device_->fingerprint(tensor.memory, 1, true).has_value());
  EXPECT_EQ(swsim_calls("cuMemAlloc_v2"), before);
}

// The trainer may destroy its stream as soon as save() has returned.
TEST_F(CudaDeviceTest, AStreamThatTheTrainerDestroyedIsNotUsedEvenIfAWaitFails) {
  const auto tensor = DeviceTensor::flat(1'000);
  CUstream own = nullptr;
  must(cuStreamCreateWithPriority(&own, kStreamNonBlocking, 0));
  auto early = device_->copy_early({&tensor.memory, 1}, reinterpret_cast<StreamHandle>(own));
  ASSERT_TRUE(early.has_value());
  const ReplicaPlaces places = replica_places(tensor.memory, 1'000, 3, kMaxReplicaSamples, true);
  auto samples = device_->sample({&places, 1}, reinterpret_cast<StreamHandle>(own));
  ASSERT_TRUE(samples.has_value());
  const std::byte* const given_up = (*early)->addresses().front();
  must(cuStreamSynchronize(own));
  must(cuStreamDestroy_v2(own));
  swsim_fail_call("cuEventSynchronize", 1, static_cast<int>(CUresult::kUnknown), 0);
  early->reset();
  swsim_fail_call("cuEventSynchronize", 1, static_cast<int>(CUresult::kUnknown), 0);
  samples->reset();
  EXPECT_EQ(counters().invalid_handles, 0u);
  // Nobody knows whether the copies are over, so their memory is not used again.
  const auto next = device_->copy_early({&tensor.memory, 1}, stream_handle());
  ASSERT_TRUE(next.has_value());
  EXPECT_NE((*next)->addresses().front(), given_up);
}

TEST_F(CudaDeviceTest, MemoryOfEarlyCopiesThatFailedInDoubtIsNotUsedAgain) {
  const auto tensor = DeviceTensor::flat(1'000);
  const auto address = [&] {
    const auto early = device_->copy_early({&tensor.memory, 1}, stream_handle());
    return early.value()->addresses().front();
  };
  const std::byte* const first = address();
  ASSERT_EQ(address(), first);
  // The copies are queued, but no event tells when they are over, and waiting for the stream fails, too.
  swsim_fail_call("cuEventRecord", 2, static_cast<int>(CUresult::kUnknown), 0);  // the first one is the producer's
  swsim_fail_call("cuEventSynchronize", 1, static_cast<int>(CUresult::kUnknown), 0);
  EXPECT_FALSE(device_->copy_early({&tensor.memory, 1}, stream_handle()).has_value());
  EXPECT_NE(address(), first);
}

TEST_F(CudaDeviceTest, AnEventComesAfterAllOfItsStreams) {
  CUstream other = nullptr;
  must(cuStreamCreateWithPriority(&other, kStreamNonBlocking, 0));
  const auto tensor = DeviceTensor::flat(8'000);
  const auto half = tensor.twin.size() / 2;
  must(swsim_launch_fill(stream_, tensor.address, half, 1, 2'000'000));
  must(swsim_launch_fill(other, tensor.address + half, half, 2, 6'000'000));
  const std::vector<StreamHandle> streams{stream_handle(), reinterpret_cast<StreamHandle>(other)};
  const auto point = device_->record_event(streams);
  ASSERT_TRUE(point.has_value());
  ASSERT_TRUE((*point)->wait());
  const auto bytes = tensor.now();
  EXPECT_EQ(std::ranges::count(bytes, std::byte{1}), static_cast<std::ptrdiff_t>(half));
  EXPECT_EQ(std::ranges::count(bytes, std::byte{2}), static_cast<std::ptrdiff_t>(half));
  must(cuStreamDestroy_v2(other));
  const auto nothing = device_->record_event({});
  ASSERT_TRUE(nothing.has_value());
  EXPECT_TRUE((*nothing)->wait());
}

TEST_F(CudaDeviceTest, TellsWhetherAGraphIsBeingRecorded) {
  CUstream aside = nullptr;
  must(cuStreamCreateWithPriority(&aside, kStreamNonBlocking, 0));
  EXPECT_EQ(device_->capture_status(stream_handle()), CaptureStatus::kNone);
  must(cuStreamBeginCapture_v2(stream_, CUstreamCaptureMode::kGlobal));
  EXPECT_EQ(device_->capture_status(stream_handle()), CaptureStatus::kCapturing);
  EXPECT_EQ(device_->capture_status(reinterpret_cast<StreamHandle>(aside)), CaptureStatus::kNone);
  EXPECT_EQ(device_->capture_status(0), CaptureStatus::kImplicit)
      << "the legacy stream is ordered with the one being captured";
  CUgraph graph = nullptr;
  must(cuStreamEndCapture(stream_, &graph));
  must(cuGraphDestroy(graph));
  EXPECT_EQ(device_->capture_status(stream_handle()), CaptureStatus::kNone);
  must(cuStreamDestroy_v2(aside));
}

TEST_F(CudaDeviceTest, WorkOfOurThreadsBreaksNobodysCapture) {
  const auto tensor = DeviceTensor::flat(20'000);
  PinnedBuffer host(20'000);
  must(cuStreamBeginCapture_v2(stream_, CUstreamCaptureMode::kGlobal));
  std::jthread([&] {
    const CopyPiece piece{&tensor.memory, 0, 20'000, host.data()};
    EXPECT_TRUE(device_->copy_to_host({&piece, 1}));
    EXPECT_TRUE(device_->fingerprint(tensor.memory, 3, true));
    const auto copies = begun(nullptr, {&tensor.memory});
    EXPECT_TRUE(queue_all(*copies, tensor.memory, host.data()));
    EXPECT_TRUE(copies->queue_second_sample(0));
    EXPECT_TRUE(wait_for(*copies));
    EXPECT_EQ(copies->unchanged(0), true);
  }).join();
  CUgraph graph = nullptr;
  EXPECT_EQ(cuStreamEndCapture(stream_, &graph), CUresult::kSuccess);
  must(cuGraphDestroy(graph));
  EXPECT_EQ(host.copy(), tensor.twin);
}

TEST_F(CudaDeviceTest, NoWaitSpinsAndEventsAreUsedAgain) {
  const auto tensor = DeviceTensor::flat(100'000);
  PinnedBuffer host(100'000);
  set_d2h_speed(200'000'000);
  std::uint64_t events = 0;
  for (int i = 0; i < 10; ++i) {
    const auto copies = begun(recorded(), {&tensor.memory});
    ASSERT_TRUE(queue_all(*copies, tensor.memory, host.data()));
    ASSERT_TRUE(copies->queue_second_sample(0));
    ASSERT_TRUE(wait_for(*copies));
    ASSERT_TRUE(device_->fingerprint(tensor.memory, 1, false));
    if (i == 0) events = swsim_calls("cuEventCreate");
  }
  EXPECT_EQ(swsim_calls("cuEventCreate"), events);
  EXPECT_GE(counters().host_waits, 10u);
  EXPECT_EQ(counters().spinning_waits, 0u);
}

TEST_F(CudaDeviceTest, ALostDeviceFailsEveryCallInWordsAndEveryDestructorReturns) {
  device_lost_ = true;
  const auto tensor = DeviceTensor::flat(100'000);
  PinnedBuffer host(100'000);
  must(swsim_stall_copies(0, 1));
  auto early = device_->copy_early({&tensor.memory, 1}, stream_handle());
  ASSERT_TRUE(early.has_value());
  auto copies = begun(recorded(), {&tensor.memory});
  ASSERT_TRUE(queue_all(*copies, tensor.memory, host.data()));
  auto last = copies->record_event();
  ASSERT_TRUE(last.has_value());
  must(swsim_lose_device(0));
  const Status waited = (*last)->wait();
  ASSERT_FALSE(waited.has_value());
  EXPECT_EQ(waited.error().kind, ErrorKind::kDevice);
  EXPECT_THAT(waited.error().to_string(), AllOf(HasSubstr("cuda:0"), HasSubstr("CUDA_ERROR_UNKNOWN")));
  EXPECT_FALSE(queue_all(*copies, tensor.memory, host.data()).has_value());
  EXPECT_FALSE(device_->fingerprint(tensor.memory, 1, true).has_value());
  const CopyPiece piece{&tensor.memory, 0, 100, host.data()};
  EXPECT_FALSE(device_->copy_to_host({&piece, 1}).has_value());
  EXPECT_FALSE(device_->begin(nullptr, std::vector{&tensor.memory}, 1).has_value());
}

class TwoCudaDevices : public OnCudaDevice {
 protected:
  TwoCudaDevices() : OnCudaDevice(2) {}
};

TEST_F(TwoCudaDevices, AStreamOfOneIsHeldBehindCopiesOfTheOther) {
  auto second = CudaDevice::open(driver_, 1);
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ((*second)->name(), "cuda:1");
  const Scope scope((*second)->context());
  const auto tensor = DeviceTensor::flat(10'000);
  PinnedBuffer host(10'000);
  must(swsim_stall_copies(1, 1));
  const auto copies = (*second)->begin(nullptr, {}, 1);
  ASSERT_TRUE(copies.has_value());
  ASSERT_TRUE(queue_all(**copies, tensor.memory, host.data()));
  const auto copied = (*copies)->record_event();
  ASSERT_TRUE(copied.has_value());
  ASSERT_TRUE(device_->stream_wait(stream_handle(), **copied));
  const auto behind = recorded();
  {
    const Scope first(device_->context());
    EXPECT_EQ(cuStreamQuery(stream_), CUresult::kNotReady);
  }
  must(swsim_stall_copies(1, 0));
  EXPECT_TRUE(behind->wait());
  EXPECT_EQ(host.copy(), tensor.twin);
}

}  // namespace
}  // namespace slackwater::cuda
