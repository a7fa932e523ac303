#include "device/cuda/inspection.hpp"

#include <dlfcn.h>

#include <array>
#include <bit>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "base/units.hpp"
#include "device/cuda/context.hpp"
#include "device/cuda/driver.hpp"
#include "device/cuda/objects.hpp"

namespace slackwater::cuda {
namespace {

constexpr std::uint64_t kSmallestPiece = 1u << 20;  // of memory that is taken away

class CudaScratchImpl final : public CudaScratch {
 public:
  CudaScratchImpl(std::shared_ptr<const Driver> driver, std::unique_ptr<Context> context)
      : driver_(std::move(driver)), context_(std::move(context)) {}
  ~CudaScratchImpl() override {
    free_all();
    const Scope scope(*context_);
    if (event_ != nullptr) (void)driver_->cuEventDestroy_v2(event_);
    if (stream_ != nullptr) (void)driver_->cuStreamDestroy_v2(stream_);
  }

  // A stream like the trainer's: of normal priority.
  Status start() {
    const Scope scope(*context_);
    SW_TRY(scope.status());
    SW_TRY(check(driver_->cuStreamCreateWithPriority(&stream_, kStreamNonBlocking, 0), "cuStreamCreateWithPriority"));
    return check(driver_->cuEventCreate(&event_, kEventDisableTiming), "cuEventCreate");
  }

  std::string name() const override { return std::string(context_->name()); }
  int device() const override { return context_->ordinal(); }
  std::vector<StreamRef> streams() const override {
    return {{.device = context_->ordinal(), .handle = reinterpret_cast<std::uintptr_t>(stream_)}};
  }

  Result<std::byte*> allocate(std::uint64_t size_bytes) override {
    const Scope scope(*context_);
    SW_TRY(scope.status());
    CUdeviceptr address = 0;
    SW_TRY(check(driver_->cuMemAlloc_v2(&address, size_bytes), "cuMemAlloc_v2"));
    device_memory_.push_back(address);
    return reinterpret_cast<std::byte*>(address);  // NOLINT(performance-no-int-to-ptr): an address of the device
  }
  Result<std::byte*> allocate_pinned(std::uint64_t size_bytes) override {
    const Scope scope(*context_);
    SW_TRY(scope.status());
    void* memory = nullptr;
    SW_TRY(check(driver_->cuMemHostAlloc(&memory, size_bytes, kMemHostAllocPortable), "cuMemHostAlloc"));
    pinned_memory_.push_back(memory);
    return static_cast<std::byte*>(memory);
  }
  void free_all() override {
    const Scope scope(*context_);
    for (const CUdeviceptr address : std::exchange(device_memory_, {})) (void)driver_->cuMemFree_v2(address);
    for (void* const memory : std::exchange(pinned_memory_, {})) (void)driver_->cuMemFreeHost(memory);
  }

  Status upload(std::byte* to, const std::byte* from, std::uint64_t size_bytes) override {
    const Scope scope(*context_);
    SW_TRY(scope.status());
    return check(driver_->cuMemcpyHtoDAsync_v2(as_device(to), from, size_bytes, stream_), "cuMemcpyHtoDAsync_v2");
  }
  Status update(std::byte* to, const std::byte* from, std::uint64_t size_bytes) override {
    const Scope scope(*context_);
    SW_TRY(scope.status());
    return check(driver_->cuMemcpyDtoDAsync_v2(as_device(to), as_device(from), size_bytes, stream_),
                 "cuMemcpyDtoDAsync_v2");
  }
  Status download(std::byte* to, const std::byte* from, std::uint64_t size_bytes) override {
    const Scope scope(*context_);
    SW_TRY(scope.status());
    return check(driver_->cuMemcpyDtoHAsync_v2(to, as_device(from), size_bytes, stream_), "cuMemcpyDtoHAsync_v2");
  }
  // Polls, because a wait inside the driver has no time-out.
  Status wait(std::chrono::milliseconds timeout) override {
    using Clock = std::chrono::steady_clock;
    const Scope scope(*context_);
    SW_TRY(scope.status());
    SW_TRY(check(driver_->cuEventRecord(event_, stream_), "cuEventRecord"));
    const auto began = Clock::now();
    while (true) {
      const CUresult code = driver_->cuEventQuery(event_);
      if (code != CUresult::kNotReady) return check(code, "cuEventQuery");
      const auto waited = Clock::now() - began;
      if (waited > timeout)
        return fail(ErrorKind::kTimeout, fmt::format("copies on {} did not end within {}", context_->name(),
                                                     format_seconds(std::chrono::duration<double>(timeout).count())));
      // Latencies are measured with this: no sleep at first.
      if (waited > std::chrono::milliseconds(2)) std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }

  Result<DeviceFacts> facts() const override {
    const Scope scope(*context_);
    SW_TRY(scope.status());
    DeviceFacts facts{.numa_node = context_->numa_node()};
    CUdevice handle = 0;
    std::array<char, 128> model{};
    SW_TRY(check(driver_->cuDeviceGet(&handle, context_->ordinal()), "cuDeviceGet"));
    SW_TRY(
        check(driver_->cuDeviceGetName(model.data(), static_cast<int>(model.size()) - 1, handle), "cuDeviceGetName"));
    facts.model = model.data();
    facts.compute_capability =
        fmt::format("{}.{}", context_->attribute(CUdevice_attribute::kComputeCapabilityMajor).value_or(0),
                    context_->attribute(CUdevice_attribute::kComputeCapabilityMinor).value_or(0));
    facts.copy_engines = context_->attribute(CUdevice_attribute::kAsyncEngineCount).value_or(0);
    std::size_t free_now = 0;
    std::size_t total = 0;
    SW_TRY(check(driver_->cuMemGetInfo_v2(&free_now, &total), "cuMemGetInfo_v2"));
    facts.free_bytes = free_now;
    facts.total_bytes = total;
    return facts;
  }
  Result<std::uint64_t> take_all_but(std::uint64_t leave_bytes) override {
    const Scope scope(*context_);
    SW_TRY(scope.status());
    SW_ASSIGN(std::uint64_t left, free_bytes());
    // Halves the piece whenever the device has none of that size: its memory may be in pieces.
    for (std::uint64_t piece = std::bit_floor(left); piece >= kSmallestPiece;) {
      if (left < leave_bytes + piece) {
        piece /= 2;
        continue;
      }
      CUdeviceptr address = 0;
      if (const CUresult code = driver_->cuMemAlloc_v2(&address, piece); code == CUresult::kSuccess) {
        device_memory_.push_back(address);
      } else if (code == CUresult::kOutOfMemory) {
        piece /= 2;
      } else {
        return fail(driver_->error(code, "cuMemAlloc_v2", context_->name()));
      }
      SW_ASSIGN(left, free_bytes());
    }
    return left;
  }
  Status register_host(std::span<std::byte> memory) override {
    const Scope scope(*context_);
    SW_TRY(scope.status());
    return context_->register_host(memory);
  }
  void unregister_host(std::byte* memory) override {
    const Scope scope(*context_);
    context_->unregister_host(memory);
  }

 private:
  Status check(CUresult code, std::string_view call) const { return context_->check(code, call); }
  Result<std::uint64_t> free_bytes() const {
    std::size_t free_now = 0;
    std::size_t total = 0;
    SW_TRY(check(driver_->cuMemGetInfo_v2(&free_now, &total), "cuMemGetInfo_v2"));
    return free_now;
  }

  const std::shared_ptr<const Driver> driver_;
  const std::unique_ptr<Context> context_;
  CUstream stream_ = nullptr;
  CUevent event_ = nullptr;
  std::vector<CUdeviceptr> device_memory_;
  std::vector<void*> pinned_memory_;
};

}  // namespace

Result<DriverFacts> inspect_driver(const std::string& library) {
  SW_ASSIGN(const std::shared_ptr<const Driver> driver, Driver::load(library));
  DriverFacts facts{.path = library};
  Dl_info where{};
  if (::dladdr(reinterpret_cast<const void*>(driver->cuInit), &where) != 0 && where.dli_fname != nullptr)
    facts.path = where.dli_fname;
  int version = 0;
  SW_TRY(driver->check(driver->cuDriverGetVersion(&version), "cuDriverGetVersion", library));
  facts.version = fmt::format("{}.{}", version / 1000, version % 1000 / 10);
  SW_TRY(driver->check(driver->cuDeviceGetCount(&facts.device_count), "cuDeviceGetCount", library));
  if (driver->cuMemcpyBatchAsync == nullptr && driver->cuMemcpyBatchAsync_v2 == nullptr)
    facts.missing.push_back({"cuMemcpyBatchAsync", "many small tensors take one call each"});
  return facts;
}

Result<std::unique_ptr<CudaScratch>> CudaScratch::open(const std::string& library, int ordinal) {
  SW_ASSIGN(std::shared_ptr<const Driver> driver, Driver::load(library));
  SW_ASSIGN(std::unique_ptr<Context> context, Context::retain(driver, ordinal));
  auto scratch = std::make_unique<CudaScratchImpl>(std::move(driver), std::move(context));
  SW_TRY(scratch->start());
  return scratch;
}

}  // namespace slackwater::cuda
