#include "device/cuda/driver.hpp"

#include <dlfcn.h>
#include <link.h>

#include <cstdint>
#include <type_traits>

#include <fmt/format.h>

namespace slackwater::cuda {
namespace {

struct CloseLibrary {
  void operator()(void* handle) const { ::dlclose(handle); }
};
using Library = std::unique_ptr<void, CloseLibrary>;

Library find_loaded(const std::string& library) {
  return Library(::dlopen(library.c_str(), RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD));
}

template <class Function>
Function find_symbol(void* library, const char* symbol) {
  static_assert(std::is_pointer_v<Function>);
  return reinterpret_cast<Function>(::dlsym(library, symbol));
}

// "12.8", or "unknown".
std::string version_of(const Driver& driver) {
  int version = 0;
  if (driver.cuDriverGetVersion == nullptr || driver.cuDriverGetVersion(&version) != CUresult::kSuccess) {
    return "unknown";
  }
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

// After these errors every call on the context fails. Only a new process can use the device again.
bool ends_context(CUresult code) {
  switch (static_cast<unsigned>(code)) {
    case 214:  // an ECC error that could not be corrected
    case 220:  // NVLink
    case 221:
    case 226:
    case 700:  // illegal address
    case 702:  // launch timeout
    case 709:  // context destroyed
    case 710:  // assert in a kernel
    case 714:  // stack, instruction, alignment, address space, program counter
    case 715:
    case 716:
    case 717:
    case 718:
    case 719:  // launch failed
    case 721: return true;
    default: return false;
  }
}

std::string_view advice_for(CUresult code) {
  if (ends_context(code)) {
    return "; this process cannot use the device any more: restart it and restore the last checkpoint";
  }
  if (code == CUresult::kOutOfMemory) return "; free memory there, or allow the process to lock more memory";
  return "";
}

ErrorKind kind_for(CUresult code) {
  if (code == CUresult::kOutOfMemory) return ErrorKind::kOutOfMemory;
  if (code == CUresult::kNotSupported) return ErrorKind::kUnsupported;
  return ErrorKind::kDevice;
}

}  // namespace

Result<std::shared_ptr<const Driver>> Driver::load(const std::string& library) {
  ::dlerror();
  Library handle(::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL));
  if (handle == nullptr) {
    const char* const why = ::dlerror();
    return fail(
        ErrorKind::kUnsupported,
        fmt::format(
            "cannot load the CUDA driver ({}); install NVIDIA's driver, or name its library in the option cuda_driver",
            why != nullptr ? why : library));
  }
  auto driver = std::make_shared<Driver>();
  const char* missing = nullptr;
#define SW_CUDA_FIND(symbol, parameters) driver->symbol = find_symbol<decltype(driver->symbol)>(handle.get(), #symbol);
#define SW_CUDA_FIND_REQUIRED(symbol, parameters) \
  SW_CUDA_FIND(symbol, parameters)                \
  if (driver->symbol == nullptr && missing == nullptr) missing = #symbol;
  SW_CUDA_REQUIRED_FUNCTIONS(SW_CUDA_FIND_REQUIRED)
  SW_CUDA_OPTIONAL_FUNCTIONS(SW_CUDA_FIND)
#undef SW_CUDA_FIND_REQUIRED
#undef SW_CUDA_FIND
  if (missing != nullptr) {
    return fail(ErrorKind::kUnsupported,
                fmt::format("the CUDA driver {} (version {}) has no {}, which Slackwater needs; install a newer driver",
                            library, version_of(*driver), missing));
  }
  if (const CUresult code = driver->cuInit(0); code != CUresult::kSuccess) {
    Error error = driver->error(code, "cuInit", library);
    error.kind = ErrorKind::kUnsupported;
    return fail(std::move(error));
  }
  (void)handle.release();  // stays loaded: see the header
  return driver;
}

Error Driver::error(CUresult code, std::string_view call, std::string_view where) const {
  const char* name = nullptr;
  const char* text = nullptr;
  if (cuGetErrorName(code, &name) != CUresult::kSuccess || name == nullptr) name = "an unknown error";
  if (cuGetErrorString(code, &text) != CUresult::kSuccess || text == nullptr) text = "the driver has no text for it";
  return Error{.kind = kind_for(code),
               .message = fmt::format("{} failed on {}: {} ({}, {}){}", call, where, text, name,
                                      static_cast<unsigned>(code), advice_for(code)),
               .retryable = code == CUresult::kOutOfMemory};
}

std::uint64_t count_library_loads() {
  std::uint64_t count = 0;
  static_cast<void>(::dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* result) {
        *static_cast<std::uint64_t*>(result) = info->dlpi_adds;
        return 1;  // every library tells the same: the first is enough
      },
      &count));
  return count;
}

bool driver_is_loaded(const std::string& library) { return find_loaded(library) != nullptr; }

std::vector<int> active_devices(const std::string& library) {
  const Library handle = find_loaded(library);
  if (handle == nullptr) return {};
  const auto count_devices = find_symbol<decltype(Driver::cuDeviceGetCount)>(handle.get(), "cuDeviceGetCount");
  const auto get_device = find_symbol<decltype(Driver::cuDeviceGet)>(handle.get(), "cuDeviceGet");
  const auto get_state =
      find_symbol<decltype(Driver::cuDevicePrimaryCtxGetState)>(handle.get(), "cuDevicePrimaryCtxGetState");
  if (count_devices == nullptr || get_device == nullptr || get_state == nullptr) return {};
  int count = 0;
  if (count_devices(&count) != CUresult::kSuccess) return {};  // not even initialised
  // The device whose primary context is current on this thread is the one the trainer works on: it comes first.
  const auto get_current = find_symbol<decltype(Driver::cuCtxGetCurrent)>(handle.get(), "cuCtxGetCurrent");
  const auto retain = find_symbol<decltype(Driver::cuDevicePrimaryCtxRetain)>(handle.get(), "cuDevicePrimaryCtxRetain");
  const auto release =
      find_symbol<decltype(Driver::cuDevicePrimaryCtxRelease_v2)>(handle.get(), "cuDevicePrimaryCtxRelease_v2");
  CUcontext current = nullptr;
  if (get_current == nullptr || get_current(&current) != CUresult::kSuccess) current = nullptr;
  const auto is_current = [&](CUdevice device) {
    CUcontext primary = nullptr;
    if (current == nullptr || retain == nullptr || release == nullptr) return false;
    if (retain(&primary, device) != CUresult::kSuccess) return false;  // it is active, so this makes no context
    (void)release(device);
    return primary == current;
  };
  std::vector<int> found;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    CUdevice device = 0;
    unsigned int flags = 0;
    int active = 0;
    if (get_device(&device, ordinal) == CUresult::kSuccess &&
        get_state(device, &flags, &active) == CUresult::kSuccess && active != 0) {
      found.insert(is_current(device) ? found.begin() : found.end(), ordinal);
    }
  }
  return found;
}

}  // namespace slackwater::cuda
