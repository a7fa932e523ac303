// What a trainer owns on the simulated device: a current primary context, a stream, tensors, pinned memory. At the end,
// fixtures check that nothing was leaked, that no old symbol was called, and that nothing was used after its end.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "device/cuda/device.hpp"
#include "device/cuda/driver.hpp"
#include "device/device.hpp"
#include "sim/driver_api.hpp"
#include "sim/sim_cuda.h"
#include "support/bytes.hpp"

namespace slackwater::cuda {

inline void must(CUresult code) { ASSERT_EQ(code, CUresult::kSuccess); }
inline void must(int code) { ASSERT_EQ(code, 0); }

using test::Bytes;

inline Bytes random_bytes(std::size_t size, std::uint64_t seed) {
  Bytes bytes(size);
  test::fill_pattern(bytes, seed);
  return bytes;
}

// Device memory, and a twin on the host that has the bytes written last.
class DeviceTensor {
 public:
  explicit DeviceTensor(StridedMemory form, std::uint64_t seed = 1) : memory(std::move(form)) {
    std::int64_t last = 0;
    for (std::size_t d = 0; d < memory.strides.size(); ++d) last += (memory.shape[d] - 1) * memory.strides[d];
    const std::uint64_t size = std::max(memory.size_bytes(), static_cast<std::uint64_t>(last + 1) * memory.item_bytes);
    twin = random_bytes(size, seed);
    must(cuMemAlloc_v2(&address, size));
    write();
    memory.data = reinterpret_cast<std::byte*>(address);
  }
  static DeviceTensor flat(std::uint64_t size, std::uint64_t seed = 1) {
    return DeviceTensor({nullptr, 1, {static_cast<std::int64_t>(size)}, {}}, seed);
  }
  DeviceTensor(DeviceTensor&& other) noexcept
      : memory(std::move(other.memory)), twin(std::move(other.twin)), address(std::exchange(other.address, 0)) {}
  ~DeviceTensor() {
    if (address != 0) (void)cuMemFree_v2(address);
  }

  void write() { must(swsim_write(address, twin.data(), twin.size())); }
  [[nodiscard]] Bytes now() const {
    Bytes bytes(twin.size());
    must(swsim_read(bytes.data(), address, bytes.size()));
    return bytes;
  }
  // The packed form of the twin, made by the host device.
  [[nodiscard]] Bytes packed_twin() const {
    StridedMemory on_host = memory;
    on_host.data = const_cast<std::byte*>(twin.data());
    Bytes packed(memory.size_bytes());
    const CopyPiece piece{&on_host, 0, packed.size(), packed.data()};
    EXPECT_TRUE(make_host_device()->copy_to_host({&piece, 1}));
    return packed;
  }
  // An update: a kernel on `stream` that rewrites every word.
  void update(CUstream stream, std::uint64_t duration_ns = 0) const {
    must(swsim_launch_add_u32(stream, address, twin.size() / 4, 1, duration_ns));
  }

  StridedMemory memory;
  Bytes twin;
  CUdeviceptr address = 0;
};

class PinnedBuffer {
 public:
  explicit PinnedBuffer(std::uint64_t size) : size_(size) {
    must(cuMemHostAlloc(&memory_, size, kMemHostAllocPortable));
    std::ranges::fill(bytes(), std::byte{0xee});
  }
  ~PinnedBuffer() { (void)cuMemFreeHost(memory_); }
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;

  [[nodiscard]] std::byte* data() const { return static_cast<std::byte*>(memory_); }
  [[nodiscard]] std::span<std::byte> bytes() const { return {data(), size_}; }
  [[nodiscard]] Bytes copy() const { return {data(), data() + size_}; }

 private:
  void* memory_ = nullptr;
  std::uint64_t size_;
};

// A fresh simulator with this many devices.
class SimulatedDriver : public ::testing::Test {
 protected:
  explicit SimulatedDriver(int devices = 1) : devices_(devices) {}
  void SetUp() override {
    ASSERT_EQ(swsim_reset(), 0u);
    must(swsim_configure(devices_));
    auto driver = Driver::load(SW_SIM_CUDA_LIBRARY);
    ASSERT_TRUE(driver.has_value()) << driver.error().to_string();
    driver_ = *driver;
  }
  void TearDown() override {
    const swsim_counts counts = counters();
    EXPECT_EQ(counts.contexts, 0u);
    EXPECT_EQ(counts.streams, 0u);
    EXPECT_EQ(counts.events, 0u);
    EXPECT_EQ(counts.allocations, 0u);
    EXPECT_EQ(counts.registrations, 0u);
    EXPECT_EQ(counts.old_abi_calls, 0u);
    EXPECT_EQ(counts.invalid_handles, 0u);
    if (!device_lost_) {
      EXPECT_EQ(counts.unpinned_in_flight, 0u);
      EXPECT_EQ(counts.abandoned, 0u);
    }
    EXPECT_EQ(swsim_reset(), 0u);
  }
  static swsim_counts counters() {
    swsim_counts counts{};
    swsim_counters(&counts);
    return counts;
  }
  static void set_d2h_speed(std::uint64_t bytes_per_s, int device = 0) {
    swsim_device_config config{};
    must(swsim_get_config(device, &config));
    config.d2h_bytes_per_s = bytes_per_s;
    must(swsim_set_config(device, &config));
  }

  const int devices_;
  bool device_lost_ = false;  // then nobody can wait for its copies, or free what it had
  std::shared_ptr<const Driver> driver_;
};

// A trainer on device 0, whose context is current on the test's thread, and the engine's view of the device.
class OnCudaDevice : public SimulatedDriver {
 protected:
  using SimulatedDriver::SimulatedDriver;
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(SimulatedDriver::SetUp());
    CUcontext context = nullptr;
    must(cuDevicePrimaryCtxRetain(&context, 0));
    must(cuCtxPushCurrent_v2(context));
    must(cuStreamCreateWithPriority(&stream_, kStreamDefault, 0));
    open_device(driver_);
  }
  void TearDown() override {
    device_.reset();
    (void)cuStreamDestroy_v2(stream_);
    CUcontext popped = nullptr;
    must(cuCtxPopCurrent_v2(&popped));
    must(cuDevicePrimaryCtxRelease_v2(0));
    SimulatedDriver::TearDown();
  }
  void open_device(std::shared_ptr<const Driver> driver) {
    device_.reset();
    auto device = CudaDevice::open(std::move(driver), 0);
    ASSERT_TRUE(device.has_value()) << device.error().to_string();
    device_ = std::move(*device);
  }

  [[nodiscard]] StreamHandle stream_handle() const { return reinterpret_cast<StreamHandle>(stream_); }
  std::shared_ptr<Event> recorded() {
    const StreamHandle stream = stream_handle();
    auto point = device_->record_event({&stream, 1});
    EXPECT_TRUE(point.has_value());
    return point.value_or(nullptr);
  }
  std::unique_ptr<DeviceCopies> begun(std::shared_ptr<Event> produced, std::vector<const StridedMemory*> guarded = {}) {
    auto copies = device_->begin(std::move(produced), guarded, 7);
    EXPECT_TRUE(copies.has_value()) << copies.error().to_string();
    return std::move(copies).value_or(nullptr);
  }
  static Status queue_all(DeviceCopies& copies, const StridedMemory& tensor, std::byte* to) {
    const CopyPiece piece{&tensor, 0, tensor.size_bytes(), to};
    return copies.queue_copies({&piece, 1});
  }
  static Status wait_for(DeviceCopies& copies) {
    auto point = copies.record_event();
    return point.has_value() ? (*point)->wait() : Status(std::unexpected(point.error()));
  }

  CUstream stream_ = nullptr;
  std::unique_ptr<CudaDevice> device_;
};

}  // namespace slackwater::cuda
