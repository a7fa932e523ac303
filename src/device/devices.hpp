// Devices: the devices of this process that the engine has met. The CUDA driver is loaded by dlopen when the first CUDA
// tensor is seen. Nothing links against it, so a machine without a driver never notices.
// Owner: the engine. Thread rule: thread-safe. Lifetime: outlives pool, stager and device copies.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "device/async_device.hpp"
#include "device/device.hpp"
#include "slackwater/error.hpp"

namespace slackwater {

namespace cuda {
class CudaDevice;
struct Driver;
}  // namespace cuda

class Devices {
 public:
  // `driver` is the file name or path of the CUDA driver library, as dlopen takes it.
  // `batched_copies`: whether its call for many copies at once may be used.
  // `copy_turn_bytes`: what leaves a device before the trainer's own copies may pass; 0: no turns.
  explicit Devices(std::string driver = "libcuda.so.1", bool batched_copies = true,
                   std::uint64_t copy_turn_bytes = kCopyTurnBytes);
  ~Devices();
  Devices(const Devices&) = delete;
  Devices& operator=(const Devices&) = delete;

  [[nodiscard]] Device& host() { return *host_; }
  // Opens the device at the first call. kUnsupported if there is no driver, if it lacks a symbol, or if there is no
  // such device. That answer is remembered.
  [[nodiscard]] Result<AsyncDevice*> cuda(int ordinal);
  // Opens the devices that this process already works with, so that the first save() does not have to. Loads nothing
  // that is not loaded. Errors are left to the save() that needs the device.
  void open_active();
  [[nodiscard]] bool cuda_in_use() const { return first_.load(std::memory_order_acquire) != nullptr; }
  // Whether a device is open. Opens those that the process has begun to work with since, as open_active() does.
  [[nodiscard]] bool any_opened();
  // Those opened so far, by ordinal.
  [[nodiscard]] std::vector<AsyncDevice*> opened();
  // Whether one of these host addresses lies in memory that is pinned, by whomever. Asks the driver for each, and only
  // if this process works with CUDA.
  [[nodiscard]] bool any_pinned(std::span<const void* const> addresses);
  // Of the first device in use; -1 if there is none or its node is unknown.
  [[nodiscard]] int numa_node() const;
  // Devices that this process already works with: the driver library is loaded and their primary context is active.
  // The one that is current on this thread comes first. Loads nothing.
  [[nodiscard]] std::vector<int> active_cuda_devices() const;

  // Registers host memory with the driver, so that all devices copy from and to it asynchronously and at full speed.
  // Registers pieces of at most 1 GiB, each a whole number of units (slabs), because a copy must not span two pieces.
  // Needs cuda_in_use(). All or nothing. Unpin memory before you unmap it.
  [[nodiscard]] Status pin(std::span<std::byte> memory, std::uint64_t unit_bytes = 1);
  void unpin(std::span<std::byte> memory);

 private:
  [[nodiscard]] Result<cuda::CudaDevice*> find_or_open(int ordinal);  // needs mutex_
  [[nodiscard]] Result<std::unique_ptr<cuda::CudaDevice>> open(int ordinal);
  void unregister(std::span<std::byte* const> pieces);

  const std::string library_;  // constant, like the next three
  const bool batched_copies_;
  const std::uint64_t copy_turn_bytes_;
  const std::unique_ptr<Device> host_ = make_host_device();

  std::mutex mutex_;
  std::optional<Result<std::shared_ptr<const cuda::Driver>>> driver_;  // guarded by mutex_; loaded or refused once
  std::map<int, std::unique_ptr<cuda::CudaDevice>> cuda_;              // guarded by mutex_; never shrinks
  std::map<int, Error> refused_;                                       // guarded by mutex_
  std::atomic<cuda::CudaDevice*> first_ = nullptr;                     // the first that was asked for; null until then

  // The count of library loads at which the driver was last found missing. 0: not looked yet.
  std::atomic<std::uint64_t> loads_without_driver_ = 0;

  std::mutex pin_mutex_;
  std::vector<std::byte*> pinned_;  // guarded by pin_mutex_; start of each registered piece
};

}  // namespace slackwater
