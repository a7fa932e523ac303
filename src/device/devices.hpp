// Devices: the devices of this process that the engine has met. CUDA is loaded when the first CUDA tensor is seen, by dlopen;
// nothing is linked, and a machine without a driver never notices.
// Thread rule: thread-safe. Lifetime: owned by the engine, outlives pool, stager and snapshots' passages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device/async_device.hpp"
#include "device/device.hpp"
#include "slackwater/error.hpp"

namespace slackwater {

class Devices {
 public:
  // `driver`: file name or path of the CUDA driver library, as dlopen takes it.
  explicit Devices(std::string driver = "libcuda.so.1");
  ~Devices();
  Devices(const Devices&) = delete;
  Devices& operator=(const Devices&) = delete;

  [[nodiscard]] Device& host();
  // Opens it at the first call. kUnsupported with one clear sentence when there is no driver, a symbol is missing in it,
  // or no such device; the answer is remembered.
  [[nodiscard]] Result<AsyncDevice*> cuda(int ordinal);
  [[nodiscard]] bool cuda_in_use() const;  // cuda() has succeeded once
  [[nodiscard]] int numa_node() const;     // of the first device in use; -1 if there is none, or it is unknown
  // Devices this process works with already: its driver library is loaded, and their primary context is active. Loads nothing.
  [[nodiscard]] std::vector<int> active_cuda_devices() const;

  // Registers host memory with the driver, so that all devices copy from and to it at full speed, asynchronously; in pieces of at most
  // 1 GiB, each a whole number of units (slabs): a copy must not span two pieces. Needs cuda_in_use(). All or nothing. Memory that was
  // pinned must be unpinned before it is unmapped.
  [[nodiscard]] Status pin(std::span<std::byte> memory, std::uint64_t unit_bytes = 1);
  void unpin(std::span<std::byte> memory);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace slackwater
