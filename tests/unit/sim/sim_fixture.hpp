// SimTest: two simulated devices with retained contexts, device 0 current. Checks at the end that everything was
// released. Gate: work that waits until the test opens it, so that no test depends on time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <ostream>
#include <stop_token>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "sim/driver_api.hpp"
#include "sim/sim_cuda.h"
#include "support/aligned_buffer.hpp"

namespace slackwater::cuda {

inline void PrintTo(CUresult result, std::ostream* out) { *out << "CUresult " << static_cast<unsigned>(result); }

namespace test {

inline constexpr CUresult kOk = CUresult::kSuccess;
inline constexpr std::size_t kMiB = std::size_t{1} << 20;
inline constexpr std::uint64_t kMs = 1'000'000;  // in nanoseconds

inline CUresult as_result(int code) { return static_cast<CUresult>(code); }
inline int code_of(CUresult result) { return static_cast<int>(result); }

inline swsim_counts counts() {
  swsim_counts now{};
  swsim_counters(&now);
  return now;
}

inline swsim_engine_stats engine(int device, int direction) {
  swsim_engine_stats stats{};
  EXPECT_EQ(swsim_engine(device, direction, &stats), 0);
  return stats;
}

template <class Change>
void configure(int device, Change change) {
  swsim_device_config config{};
  ASSERT_EQ(swsim_get_config(device, &config), 0);
  change(config);
  ASSERT_EQ(swsim_set_config(device, &config), 0);
}

// Host memory that is pinned for as long as it lives.
class Pinned {
 public:
  explicit Pinned(std::size_t size_bytes) : size_bytes_(size_bytes) {
    void* memory = nullptr;
    EXPECT_EQ(cuMemHostAlloc(&memory, size_bytes, kMemHostAllocPortable), kOk);
    data_ = static_cast<std::uint8_t*>(memory);
  }
  ~Pinned() { (void)cuMemFreeHost(data_); }  // on a failed device it returns the error, and frees
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;

  [[nodiscard]] std::uint8_t* data() const { return data_; }
  [[nodiscard]] std::uint8_t operator[](std::size_t index) const { return data_[index]; }
  [[nodiscard]] std::size_t size() const { return size_bytes_; }

 private:
  std::uint8_t* data_ = nullptr;
  std::size_t size_bytes_;
};

// Does something as soon as a call of this thread has been counted. If none ever is, the destructor stops watching.
template <class Seen, class Then>
[[nodiscard]] std::jthread once(Seen seen, Then then) {
  return std::jthread([=](const std::stop_token& stop) {
    while (!seen() && !stop.stop_requested()) std::this_thread::yield();
    then();
  });
}

class SimTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(swsim_configure(2), 0);
    ASSERT_EQ(cuInit(0), kOk);
    for (int device : {0, 1}) ASSERT_EQ(cuDevicePrimaryCtxRetain(&contexts_[device], device), kOk);
    use(0);
  }

  // A test must release what it made. Otherwise the reset fails.
  void TearDown() override {
    for (int device : {0, 1}) {
      EXPECT_EQ(swsim_stall_copies(device, SWSIM_STALL_OFF), 0);
      use(device);
      const bool lost = cuCtxSynchronize() != kOk;  // a device that failed stays failed
      for (CUdeviceptr address : allocations_[device]) EXPECT_TRUE(cuMemFree_v2(address) == kOk || lost);
      for (CUstream stream : streams_[device]) EXPECT_TRUE(cuStreamDestroy_v2(stream) == kOk || lost);
      for (CUevent event : events_[device]) EXPECT_TRUE(cuEventDestroy_v2(event) == kOk || lost);
      EXPECT_EQ(cuDevicePrimaryCtxRelease_v2(device), kOk);
    }
    EXPECT_EQ(counts().abandoned, 0u);
    EXPECT_EQ(swsim_reset(), 0u);
  }

  void use(int device) {
    ASSERT_EQ(cuCtxSetCurrent(contexts_[device]), kOk);
    current_ = device;
  }

  CUstream stream(unsigned flags = kStreamNonBlocking, int priority = 0) {
    CUstream made = nullptr;
    EXPECT_EQ(cuStreamCreateWithPriority(&made, flags, priority), kOk);
    streams_[current_].push_back(made);
    return made;
  }

  CUevent event(unsigned flags = kEventBlockingSync | kEventDisableTiming) {
    CUevent made = nullptr;
    EXPECT_EQ(cuEventCreate(&made, flags), kOk);
    events_[current_].push_back(made);
    return made;
  }

  CUevent recorded(CUstream on) {
    CUevent made = event();
    EXPECT_EQ(cuEventRecord(made, on), kOk);
    return made;
  }

  CUdeviceptr allocate(std::size_t size_bytes, std::uint8_t value = 0) {
    CUdeviceptr address = 0;
    EXPECT_EQ(cuMemAlloc_v2(&address, size_bytes), kOk);
    allocations_[current_].push_back(address);
    const std::vector<std::uint8_t> bytes(size_bytes, value);
    EXPECT_EQ(swsim_write(address, bytes.data(), size_bytes), 0);
    return address;
  }

  static std::vector<std::uint8_t> device_bytes(CUdeviceptr address, std::size_t size_bytes) {
    std::vector<std::uint8_t> bytes(size_bytes);
    EXPECT_EQ(swsim_read(bytes.data(), address, size_bytes), 0);
    return bytes;
  }

  // Makes `held` wait until open() is called, by waiting for a stalled copy of the other device.
  class Gate {
   public:
    Gate(SimTest& test, CUstream held) {
      const int back = test.current_;
      const int other = 1 - back;
      device_ = other;
      EXPECT_EQ(swsim_stall_copies(other, SWSIM_STALL_ON), 0);
      test.use(other);
      CUstream closed = test.stream();
      EXPECT_EQ(cuMemcpyHtoDAsync_v2(test.allocate(4), &word_, sizeof word_, closed), kOk);
      opened_ = test.recorded(closed);
      test.use(back);
      hold(held);
    }
    void hold(CUstream another) { EXPECT_EQ(cuStreamWaitEvent(another, opened_, 0), kOk); }
    void open() { EXPECT_EQ(swsim_stall_copies(device_, SWSIM_STALL_OFF), 0); }

   private:
    int device_ = 0;
    CUevent opened_ = nullptr;
    std::uint32_t word_ = 0;
  };

  CUcontext contexts_[2] = {};

 private:
  int current_ = 0;
  std::vector<CUdeviceptr> allocations_[2];
  std::vector<CUstream> streams_[2];
  std::vector<CUevent> events_[2];
};

}  // namespace test
}  // namespace slackwater::cuda
