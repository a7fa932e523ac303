#include "device/devices.hpp"

#include <algorithm>
#include <functional>
#include <utility>

#include "base/result.hpp"
#include "device/cuda/device.hpp"
#include "device/cuda/driver.hpp"

namespace slackwater {
namespace {

constexpr std::uint64_t kMaxPinBytes = 1u << 30;

}  // namespace

Devices::Devices(std::string driver, bool batched_copies, std::uint64_t copy_turn_bytes)
    : library_(std::move(driver)), batched_copies_(batched_copies), copy_turn_bytes_(copy_turn_bytes) {}

Devices::~Devices() {
  const std::lock_guard lock(pin_mutex_);
  unregister(pinned_);
}

Result<AsyncDevice*> Devices::cuda(int ordinal) {
  const std::lock_guard lock(mutex_);
  SW_ASSIGN(cuda::CudaDevice* const device, find_or_open(ordinal));
  if (!cuda_in_use()) first_.store(device, std::memory_order_release);
  return device;
}

void Devices::open_active() {
  // Looking for a library that is not there takes the loader 80 us, and every save() asks: look again only once the
  // process has loaded something.
  const std::uint64_t loads = cuda::count_library_loads();
  if (loads == loads_without_driver_.load(std::memory_order_relaxed)) return;
  if (!cuda::driver_is_loaded(library_)) {
    loads_without_driver_.store(loads, std::memory_order_relaxed);
    return;
  }
  for (const int ordinal : active_cuda_devices()) {
    const std::lock_guard lock(mutex_);
    (void)find_or_open(ordinal);
  }
}

std::vector<AsyncDevice*> Devices::opened() {
  const std::lock_guard lock(mutex_);
  std::vector<AsyncDevice*> devices;
  for (const auto& [ordinal, device] : cuda_) devices.push_back(device.get());
  return devices;
}

bool Devices::any_opened() {
  const auto any = [this] {
    const std::lock_guard lock(mutex_);
    return !cuda_.empty();
  };
  if (any()) return true;
  open_active();  // the process may have begun to use CUDA since the engine was opened
  return any();
}

bool Devices::any_pinned(std::span<const void* const> addresses) {
  if (addresses.empty() || !any_opened()) return false;
  const std::lock_guard lock(mutex_);
  const cuda::Context& context = cuda_.begin()->second->context();
  const cuda::Scope scope(context);
  return scope.status() && std::ranges::any_of(addresses, [&](const void* address) { return context.pinned(address); });
}

Result<cuda::CudaDevice*> Devices::find_or_open(int ordinal) {
  if (const auto known = cuda_.find(ordinal); known != cuda_.end()) return known->second.get();
  if (const auto refused = refused_.find(ordinal); refused != refused_.end()) return fail(refused->second);
  auto opened = open(ordinal);
  if (!opened.has_value()) {
    if (opened.error().kind == ErrorKind::kUnsupported) refused_.emplace(ordinal, opened.error());
    return fail(std::move(opened).error());
  }
  return cuda_.emplace(ordinal, std::move(*opened)).first->second.get();
}

Result<std::unique_ptr<cuda::CudaDevice>> Devices::open(int ordinal) {
  if (!driver_.has_value()) {
    driver_ = cuda::Driver::load(library_);
    if (driver_->has_value() && !batched_copies_) *driver_ = (**driver_)->without_batches();
  }
  if (!driver_->has_value()) return fail(driver_->error());
  return cuda::CudaDevice::open(**driver_, ordinal, copy_turn_bytes_);
}

int Devices::numa_node() const {
  const cuda::CudaDevice* const device = first_.load(std::memory_order_acquire);
  return device == nullptr ? -1 : device->numa_node();
}

std::vector<int> Devices::active_cuda_devices() const { return cuda::active_devices(library_); }

Status Devices::pin(std::span<std::byte> memory, std::uint64_t unit_bytes) {
  const cuda::CudaDevice* const device = first_.load(std::memory_order_acquire);
  if (device == nullptr) return fail(ErrorKind::kInternal, "memory cannot be pinned before a CUDA device is in use");
  const std::uint64_t piece_bytes = std::max(kMaxPinBytes / unit_bytes, std::uint64_t{1}) * unit_bytes;
  const cuda::Context& context = device->context();
  const cuda::Scope scope(context);
  SW_TRY(scope.status());
  const std::lock_guard lock(pin_mutex_);
  std::vector<std::byte*> pieces;
  for (std::uint64_t begin = 0; begin < memory.size(); begin += piece_bytes) {
    const auto piece = memory.subspan(begin, std::min<std::uint64_t>(piece_bytes, memory.size() - begin));
    if (const Status registered = context.register_host(piece); !registered) {
      unregister(pieces);
      return registered;
    }
    pieces.push_back(piece.data());
  }
  pinned_.insert(pinned_.end(), pieces.begin(), pieces.end());
  return {};
}

void Devices::unpin(std::span<std::byte> memory) {
  const std::lock_guard lock(pin_mutex_);
  const auto within = std::ranges::partition(pinned_, [&](const std::byte* piece) {
    return std::less<>()(piece, memory.data()) || !std::less<>()(piece, memory.data() + memory.size());
  });
  unregister(within);
  pinned_.erase(within.begin(), within.end());
}

void Devices::unregister(std::span<std::byte* const> pieces) {
  const cuda::CudaDevice* const device = first_.load(std::memory_order_acquire);
  if (device == nullptr || pieces.empty()) return;
  const cuda::Scope scope(device->context());
  for (std::byte* piece : pieces) device->context().unregister_host(piece);
}

}  // namespace slackwater
