#include "device/devices.hpp"

#include <sys/mman.h>

#include <cstdint>
#include <filesystem>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "device/cuda/context.hpp"
#include "device/cuda/driver.hpp"
#include "support/temp_dir.hpp"
#include "unit/device/cuda_trainer.hpp"

namespace slackwater {
namespace {

using ::testing::HasSubstr;

class DevicesTest : public cuda::SimulatedDriver {
 protected:
  DevicesTest() : cuda::SimulatedDriver(2) {}
};

// Address space that costs nothing until it is touched.
class Mapping {
 public:
  explicit Mapping(std::size_t size)
      : memory_(static_cast<std::byte*>(
                    ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)),
                size) {}
  ~Mapping() { ::munmap(memory_.data(), memory_.size()); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  [[nodiscard]] std::span<std::byte> memory() const { return memory_; }

 private:
  std::span<std::byte> memory_;
};

TEST_F(DevicesTest, AMachineWithoutADriverHasTheHostAndAClearAnswer) {
  Devices devices("libno-such-driver.so.1");
  std::byte byte{};
  const StridedMemory tensor{&byte, 1, {1}, {}};
  EXPECT_TRUE(devices.host().fingerprint(tensor, 1, true).has_value());
  EXPECT_TRUE(devices.active_cuda_devices().empty());
  for (int i = 0; i < 2; ++i) {
    const auto device = devices.cuda(0);
    ASSERT_FALSE(device.has_value());
    EXPECT_EQ(device.error().kind, ErrorKind::kUnsupported);
    EXPECT_THAT(device.error().to_string(), HasSubstr("libno-such-driver.so.1"));
  }
  EXPECT_FALSE(devices.cuda_in_use());
  EXPECT_FALSE(devices.pin({&byte, 1}).has_value());
}

// A trainer may begin to use CUDA long after the engine was opened, so every save() looks again.
TEST_F(DevicesTest, ADriverThatIsLoadedLaterIsNoticed) {
  const test::TempDir dir;
  const std::string library = dir.path() + "/libcuda-of-this-test.so";  // a library that nobody has loaded yet
  std::filesystem::copy_file(SW_SIM_CUDA_LIBRARY, library);
  Devices devices(library);
  for (int i = 0; i < 2; ++i) EXPECT_FALSE(devices.any_opened());
  const std::uint64_t loads = cuda::count_library_loads();
  const auto driver = cuda::Driver::load(library);
  ASSERT_TRUE(driver.has_value()) << driver.error().to_string();
  EXPECT_GT(cuda::count_library_loads(), loads);
  EXPECT_TRUE(cuda::driver_is_loaded(library));
  EXPECT_FALSE(devices.any_opened()) << "loaded, but not in use";
  const auto context = cuda::Context::retain(*driver, 0);
  ASSERT_TRUE(context.has_value()) << context.error().to_string();
  EXPECT_TRUE(devices.any_opened());
}

TEST_F(DevicesTest, OpensADeviceOnceAndOnlyWhenAsked) {
  Devices devices(SW_SIM_CUDA_LIBRARY);
  EXPECT_FALSE(devices.cuda_in_use());
  EXPECT_EQ(devices.numa_node(), -1);
  EXPECT_EQ(counters().contexts, 0u);
  const auto first = devices.cuda(0);
  ASSERT_TRUE(first.has_value()) << first.error().to_string();
  EXPECT_TRUE(devices.cuda_in_use());
  EXPECT_FALSE(devices.active_cuda_devices().empty());
  EXPECT_EQ(devices.cuda(0).value_or(nullptr), *first);
  EXPECT_EQ(counters().contexts, 1u);
  const auto second = devices.cuda(1);
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ((*first)->name(), "cuda:0");
  EXPECT_EQ((*second)->name(), "cuda:1");
  EXPECT_EQ((*second)->ordinal(), 1);
  EXPECT_EQ(devices.numa_node(), (*first)->numa_node());
  EXPECT_THAT(devices.cuda(2).error().to_string(), HasSubstr("cuda:2"));
}

TEST_F(DevicesTest, ADeviceThatIsFullNowMayBeOpenedLater) {
  Devices devices(SW_SIM_CUDA_LIBRARY);
  swsim_fail_call("cuDevicePrimaryCtxRetain", 1, static_cast<int>(cuda::CUresult::kOutOfMemory), 0);
  ASSERT_FALSE(devices.cuda(0).has_value());
  EXPECT_TRUE(devices.cuda(0).has_value());
}

TEST_F(DevicesTest, MemoryIsPinnedInPiecesOfWholeSlabsAndUnpinned) {
  constexpr std::uint64_t kSlab = 3u << 20;
  const Mapping mapping(kSlab * 700);  // 2.05 GiB
  Devices devices(SW_SIM_CUDA_LIBRARY);
  ASSERT_TRUE(devices.cuda(0).has_value());
  const swsim_counts own = counters();  // what the device has pinned for itself
  ASSERT_TRUE(devices.pin(mapping.memory(), kSlab));
  EXPECT_EQ(counters().registrations - own.registrations, 3u);
  EXPECT_EQ(counters().pinned_bytes - own.pinned_bytes, mapping.memory().size());
  const std::uint64_t border = (1u << 30) / kSlab * kSlab;
  for (const std::uint64_t begin : {std::uint64_t{0}, border - kSlab, border, mapping.memory().size() - kSlab}) {
    const Status again = devices.pin(mapping.memory().subspan(begin, kSlab), kSlab);
    ASSERT_FALSE(again.has_value()) << begin;
    EXPECT_THAT(again.error().to_string(), HasSubstr("ALREADY_REGISTERED"));
  }
  EXPECT_EQ(counters().registrations - own.registrations, 3u);
  devices.unpin(mapping.memory());
  EXPECT_EQ(counters().registrations, own.registrations);
}

TEST_F(DevicesTest, PinningIsAllOrNothing) {
  const Mapping mapping(5u << 29);  // 2.5 GiB
  Devices devices(SW_SIM_CUDA_LIBRARY);
  ASSERT_TRUE(devices.cuda(0).has_value());
  const std::uint64_t own = counters().registrations;  // what the device has pinned for itself
  swsim_fail_call("cuMemHostRegister_v2", 3, static_cast<int>(cuda::CUresult::kOutOfMemory), 0);
  const Status refused = devices.pin(mapping.memory());
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().kind, ErrorKind::kOutOfMemory);
  EXPECT_EQ(counters().registrations, own);
  EXPECT_TRUE(devices.pin(mapping.memory()));
}

}  // namespace
}  // namespace slackwater
