// Driver: the CUDA driver library of this process, loaded by dlopen: a table of its functions and its errors in words.
// Thread rule: constant after load(), thread-safe as the driver is. Lifetime: the library stays loaded for good, because the driver's
// own threads run in it; the table is plain pointers and may be copied.
//
// Fork: a context does not survive one. In a forked child nothing of this folder's CUDA part may be called or destroyed; the engine
// disowns its devices there.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "device/cuda_abi.hpp"
#include "slackwater/error.hpp"

namespace slackwater::cuda {

struct Driver {
#define SW_CUDA_POINTER(symbol, parameters) CUresult(*symbol) parameters = nullptr;
  SW_CUDA_REQUIRED_FUNCTIONS(SW_CUDA_POINTER)  // never null after load()
  SW_CUDA_OPTIONAL_FUNCTIONS(SW_CUDA_POINTER)  // null in drivers that are too old for them
#undef SW_CUDA_POINTER

  // `library`: file name or path, as dlopen takes it. Initialises the driver. kUnsupported, in one sentence, when there is no
  // such library, it lacks a function, or it finds no device.
  [[nodiscard]] static Result<std::shared_ptr<const Driver>> load(const std::string& library);

  // What `call` on `where` ("cuda:0") failed with. kOutOfMemory, kUnsupported, else kDevice.
  [[nodiscard]] Error error(CUresult code, std::string_view call, std::string_view where) const;
  [[nodiscard]] Status check(CUresult code, std::string_view call, std::string_view where) const {
    if (code == CUresult::kSuccess) [[likely]]
      return {};
    return fail(error(code, call, where));
  }
};

// Devices this process works with already: the library is loaded and their primary context is active. Loads and initialises
// nothing.
[[nodiscard]] std::vector<int> active_devices(const std::string& library);

}  // namespace slackwater::cuda
