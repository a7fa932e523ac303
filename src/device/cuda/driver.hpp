// Driver: the CUDA driver library of this process, loaded by dlopen. A table of its functions, and its errors in words.
// Thread rule: constant after load(); thread-safe, because the driver is. Lifetime: the library stays loaded until the
// process ends, because the driver's own threads run in it. The table is plain pointers and may be copied.
//
// Fork: a context does not survive a fork. In a forked child, nothing in this folder may be called or destroyed. The
// engine disowns its devices there.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "device/cuda/abi.hpp"
#include "slackwater/error.hpp"

namespace slackwater::cuda {

struct Driver {
#define SW_CUDA_POINTER(symbol, parameters) CUresult(*symbol) parameters = nullptr;
  SW_CUDA_REQUIRED_FUNCTIONS(SW_CUDA_POINTER)  // never null after load()
  SW_CUDA_OPTIONAL_FUNCTIONS(SW_CUDA_POINTER)  // null in drivers that are too old for them
#undef SW_CUDA_POINTER

  // Loads `library`, a file name or path as dlopen takes it, and initialises the driver. kUnsupported if there is no
  // such library, if it lacks a function, or if it finds no device.
  [[nodiscard]] static Result<std::shared_ptr<const Driver>> load(const std::string& library);

  // The same driver, as if it were too old for batched copies.
  [[nodiscard]] std::shared_ptr<const Driver> without_batches() const {
    auto driver = std::make_shared<Driver>(*this);
    driver->cuMemcpyBatchAsync = nullptr;
    driver->cuMemcpyBatchAsync_v2 = nullptr;
    return driver;
  }

  // The error of `call` on `where` ("cuda:0"). Its kind is kOutOfMemory, kUnsupported or kDevice.
  [[nodiscard]] Error error(CUresult code, std::string_view call, std::string_view where) const;
  [[nodiscard]] Status check(CUresult code, std::string_view call, std::string_view where) const {
    if (code == CUresult::kSuccess) [[likely]]
      return {};
    return fail(error(code, call, where));
  }
};

// How many libraries this process has loaded since it began; those unloaded since count too. Never 0.
[[nodiscard]] std::uint64_t count_library_loads();

// Whether somebody has loaded the library. Loads nothing.
[[nodiscard]] bool driver_is_loaded(const std::string& library);

// Devices that this process already works with: the library is loaded and their primary context is active. Loads and
// initialises nothing.
[[nodiscard]] std::vector<int> active_devices(const std::string& library);

}  // namespace slackwater::cuda
