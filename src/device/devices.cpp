#include "device/devices.hpp"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/result.hpp"
#include "device/cuda_device.hpp"

namespace slackwater {
namespace {

constexpr std::uint64_t kMaxPinBytes = 1u << 30;

}  // namespace

class Devices::Impl {
 public:
  explicit Impl(std::string library) : library_(std::move(library)) {}

  ~Impl() {
    const std::lock_guard lock(pin_mutex_);
    unregister(pinned_);
  }

  Device& host() { return *host_; }

  Result<AsyncDevice*> cuda(int ordinal) {
    const std::lock_guard lock(mutex_);
    if (const auto known = cuda_.find(ordinal); known != cuda_.end()) return known->second.get();
    if (const auto refused = refused_.find(ordinal); refused != refused_.end()) return fail(refused->second);
    auto opened = open(ordinal);
    if (!opened.has_value()) {
      if (opened.error().kind == ErrorKind::kUnsupported) refused_.emplace(ordinal, opened.error());
      return fail(std::move(opened).error());
    }
    cuda::CudaDevice* const device = cuda_.emplace(ordinal, std::move(*opened)).first->second.get();
    if (!cuda_in_use()) first_.store(device, std::memory_order_release);
    return device;
  }

  bool cuda_in_use() const { return first_.load(std::memory_order_acquire) != nullptr; }
  int numa_node() const {
    const cuda::CudaDevice* const device = first_.load(std::memory_order_acquire);
    return device == nullptr ? -1 : device->numa_node();
  }
  std::vector<int> active_cuda_devices() const { return cuda::active_devices(library_); }

  Status pin(std::span<std::byte> memory, std::uint64_t unit_bytes) {
    const cuda::CudaDevice* const device = first_.load(std::memory_order_acquire);
    if (device == nullptr) return fail(ErrorKind::kInternal, "memory cannot be pinned before a CUDA device is in use");
    const std::uint64_t piece_bytes = std::max(kMaxPinBytes / unit_bytes, std::uint64_t{1}) * unit_bytes;
    const cuda::Context& context = device->context();
    const cuda::Scope scope(context);
    SW_TRY(scope.status());
    const std::lock_guard lock(pin_mutex_);
    std::vector<std::byte*> pieces;
    for (std::uint64_t begin = 0; begin < memory.size(); begin += piece_bytes) {
      std::byte* const piece = memory.data() + begin;
      const Status registered = context.check(
          context.driver().cuMemHostRegister_v2(piece, std::min<std::uint64_t>(piece_bytes, memory.size() - begin),
                                                cuda::kMemHostRegisterPortable),
          "cuMemHostRegister_v2");
      if (!registered.has_value()) {
        unregister(pieces);
        return registered;
      }
      pieces.push_back(piece);
    }
    pinned_.insert(pinned_.end(), pieces.begin(), pieces.end());
    return {};
  }

  void unpin(std::span<std::byte> memory) {
    const std::lock_guard lock(pin_mutex_);
    const auto within = std::ranges::partition(pinned_, [&](const std::byte* piece) {
      return std::less<>()(piece, memory.data()) || !std::less<>()(piece, memory.data() + memory.size());
    });
    unregister(within);
    pinned_.erase(within.begin(), within.end());
  }

 private:
  Result<std::unique_ptr<cuda::CudaDevice>> open(int ordinal) {
    if (!driver_.has_value()) driver_ = cuda::Driver::load(library_);
    if (!driver_->has_value()) return fail(driver_->error());
    return cuda::CudaDevice::open(**driver_, ordinal);
  }

  // A driver that has lost its device refuses; there is nothing left to undo then.
  void unregister(std::span<std::byte* const> pieces) {
    const cuda::CudaDevice* const device = first_.load(std::memory_order_acquire);
    if (device == nullptr || pieces.empty()) return;
    const cuda::Scope scope(device->context());
    for (std::byte* piece : pieces) (void)device->context().driver().cuMemHostUnregister(piece);
  }

  const std::string library_;
  const std::unique_ptr<Device> host_ = make_host_device();

  std::mutex mutex_;
  std::optional<Result<std::shared_ptr<const cuda::Driver>>> driver_;  // guarded by mutex_; loaded, or refused, once
  std::map<int, std::unique_ptr<cuda::CudaDevice>> cuda_;              // guarded by mutex_; never shrinks
  std::map<int, Error> refused_;                                       // guarded by mutex_
  std::atomic<cuda::CudaDevice*> first_ = nullptr;                     // of cuda_; null until then

  std::mutex pin_mutex_;
  std::vector<std::byte*> pinned_;  // guarded by pin_mutex_; bases of what is registered
};

Devices::Devices(std::string driver) : impl_(std::make_unique<Impl>(std::move(driver))) {}
Devices::~Devices() = default;

Device& Devices::host() { return impl_->host(); }
Result<AsyncDevice*> Devices::cuda(int ordinal) { return impl_->cuda(ordinal); }
bool Devices::cuda_in_use() const { return impl_->cuda_in_use(); }
int Devices::numa_node() const { return impl_->numa_node(); }
std::vector<int> Devices::active_cuda_devices() const { return impl_->active_cuda_devices(); }
Status Devices::pin(std::span<std::byte> memory, std::uint64_t unit_bytes) { return impl_->pin(memory, unit_bytes); }
void Devices::unpin(std::span<std::byte> memory) { impl_->unpin(memory); }

}  // namespace slackwater
