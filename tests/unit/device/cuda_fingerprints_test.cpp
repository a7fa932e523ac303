// Fingerprints of every byte: the same as on the host, fetched ahead of their use, through little memory.
#include <chrono>
#include <deque>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "device/cuda/whole_fingerprints.hpp"
#include "unit/device/cuda_trainer.hpp"

namespace slackwater::cuda {
namespace {

using namespace std::chrono_literals;

class CudaFingerprints : public OnCudaDevice {
 protected:
  static constexpr std::uint64_t kMiB = 1u << 20;

  void TearDown() override {
    tensors_.clear();
    OnCudaDevice::TearDown();
  }
  void add(StridedMemory form) { tensors_.emplace_back(std::move(form), tensors_.size() + 1); }
  void add(std::uint64_t size_bytes) { add({nullptr, 1, {static_cast<std::int64_t>(size_bytes)}, {}}); }

  [[nodiscard]] std::vector<const StridedMemory*> memories() const {
    std::vector<const StridedMemory*> memories;
    for (const DeviceTensor& tensor : tensors_) memories.push_back(&tensor.memory);
    return memories;
  }
  // Of the same bytes in host memory, where nothing is fetched.
  [[nodiscard]] std::vector<std::uint64_t> expected() const {
    std::vector<std::uint64_t> fingerprints;
    for (const DeviceTensor& tensor : tensors_) {
      StridedMemory on_host = tensor.memory;
      on_host.data = const_cast<std::byte*>(tensor.twin.data());
      fingerprints.push_back(make_host_device()->fingerprint(on_host, 0, true).value());
    }
    return fingerprints;
  }
  static std::uint64_t copies_queued() {
    return swsim_calls("cuMemcpyDtoHAsync_v2") + swsim_calls("cuMemcpyBatchAsync_v2");
  }

  std::deque<DeviceTensor> tensors_;
};

TEST_F(CudaFingerprints, OfManyTensorsOfAnyFormAreThoseOfTheirBytesOnTheHost) {
  constexpr std::uint64_t kBuffer = WholeFingerprints::kBufferBytes;
  for (const std::uint64_t size : {std::uint64_t{1}, kWholeChunkBytes, kWholeChunkBytes + 1, kBuffer, kBuffer - 1,
                                   kBuffer + 1, 3 * kBuffer + 77, std::uint64_t{5}, 9 * kBuffer}) {
    add(size);
  }
  add({nullptr, 4, {300, 50}, {64, 1}});
  add({nullptr, 4, {700, 900}, {1, 700}});
  add({nullptr, 4, {20, 30}, {0, 1}});
  const auto found = device_->whole_fingerprints(memories());
  ASSERT_TRUE(found) << found.error().to_string();
  EXPECT_EQ(*found, expected());

  const StridedMemory none{nullptr, 4, {0}, {}};
  const std::vector<const StridedMemory*> with_empty{&none, memories().front(), &none};
  EXPECT_EQ(device_->whole_fingerprints(with_empty), (std::vector<std::uint64_t>{0, expected().front(), 0}));
  EXPECT_EQ(device_->whole_fingerprints({}), std::vector<std::uint64_t>());
}

TEST_F(CudaFingerprints, CopiesAreQueuedAheadThroughAFewMiBOfPinnedMemory) {
  add(20 * kMiB);
  const std::vector<std::uint64_t> wanted = expected();
  const std::uint64_t queued = copies_queued();
  const swsim_counts earlier = counters();
  must(swsim_stall_copies(0, SWSIM_STALL_ON));
  Result<std::vector<std::uint64_t>> found;
  {
    const std::jthread thread([&] { found = device_->whole_fingerprints(memories()); });
    const auto give_up = std::chrono::steady_clock::now() + 60s;
    while (counters().host_waits == earlier.host_waits && std::chrono::steady_clock::now() < give_up) {
      std::this_thread::yield();
    }
    // It waits for the first buffer now. The copies into the others are behind it in the queue.
    EXPECT_EQ(copies_queued() - queued, WholeFingerprints::kBuffers) << "the device would idle while a piece is hashed";
    EXPECT_LE(counters().pinned_bytes - earlier.pinned_bytes, WholeFingerprints::kMemoryBytes);
    must(swsim_stall_copies(0, SWSIM_STALL_OFF));
  }
  ASSERT_TRUE(found) << found.error().to_string();
  EXPECT_EQ(*found, wanted);
  EXPECT_LE(counters().pinned_bytes - earlier.pinned_bytes, WholeFingerprints::kMemoryBytes);
}

TEST_F(CudaFingerprints, SmallTensorsShareABufferAndItsWait) {
  for (int i = 0; i < 300; ++i) add(5'000 + i);  // 1.5 MB
  const std::uint64_t waits = counters().host_waits;
  const auto found = device_->whole_fingerprints(memories());
  ASSERT_TRUE(found) << found.error().to_string();
  EXPECT_LE(counters().host_waits - waits, 2u);
  EXPECT_EQ(*found, expected());
}

TEST_F(CudaFingerprints, AfterAnErrorNothingIsWrittenAnyMoreAndTheNextOneIsRight) {
  add(20 * kMiB);
  for (const char* call : {"cuMemcpyDtoHAsync_v2", "cuEventRecord", "cuEventSynchronize"}) {
    for (const std::uint64_t nth : {1u, 3u, 6u}) {
      swsim_fail_call(call, nth, static_cast<int>(CUresult::kUnknown), 0);
      EXPECT_FALSE(device_->whole_fingerprints(memories())) << call << nth;
      EXPECT_EQ(counters().pending, 0u) << call << nth;
      EXPECT_EQ(device_->whole_fingerprints(memories()), expected()) << call << nth;
    }
  }
}

}  // namespace
}  // namespace slackwater::cuda
