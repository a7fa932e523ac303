#include "device/cuda/context.hpp"

#include <array>
#include <cctype>
#include <fstream>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"

namespace slackwater::cuda {

Result<std::unique_ptr<Context>> Context::retain(std::shared_ptr<const Driver> driver, int ordinal) {
  const std::string name = fmt::format("cuda:{}", ordinal);
  int count = 0;
  SW_TRY(driver->check(driver->cuDeviceGetCount(&count), "cuDeviceGetCount", name));
  if (ordinal < 0 || ordinal >= count) {
    return fail(
        ErrorKind::kUnsupported,
        fmt::format("there is no device {}: the CUDA driver shows {} devices (CUDA_VISIBLE_DEVICES may hide some)",
                    name, count));
  }
  CUdevice device = 0;
  SW_TRY(driver->check(driver->cuDeviceGet(&device, ordinal), "cuDeviceGet", name));
  CUcontext context = nullptr;
  SW_TRY(driver->check(driver->cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain", name));
  return std::unique_ptr<Context>(new Context(std::move(driver), device, context, ordinal));
}

Context::Context(std::shared_ptr<const Driver> driver, CUdevice device, CUcontext context, int ordinal)
    : driver_(std::move(driver)),
      device_(device),
      context_(context),
      ordinal_(ordinal),
      name_(fmt::format("cuda:{}", ordinal)) {}

Context::~Context() { (void)driver_->cuDevicePrimaryCtxRelease_v2(device_); }

std::optional<int> Context::attribute(CUdevice_attribute attribute) const {
  int value = 0;
  if (driver_->cuDeviceGetAttribute(&value, attribute, device_) != CUresult::kSuccess) return std::nullopt;
  return value;
}

int Context::numa_node() const {
  if (const auto node = attribute(CUdevice_attribute::kHostNumaId); node.has_value() && *node >= 0) return *node;
  std::array<char, 32> bus_id{};
  if (driver_->cuDeviceGetPCIBusId(bus_id.data(), static_cast<int>(bus_id.size()), device_) != CUresult::kSuccess) {
    return -1;
  }
  bus_id.back() = '\0';
  return numa_node_of_pci(bus_id.data());
}

Status Context::register_host(std::span<std::byte> memory) const {
  return check(driver_->cuMemHostRegister_v2(memory.data(), memory.size(), kMemHostRegisterPortable),
               "cuMemHostRegister_v2");
}

// A driver that has lost its device refuses. Then there is nothing left to undo.
void Context::unregister_host(std::byte* memory) const { (void)driver_->cuMemHostUnregister(memory); }

// The driver knows only such memory: for any other host address it answers kInvalidValue.
bool Context::pinned(const void* address) const {
  CUmemorytype type{};
  const auto number = static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(address));
  return driver_->cuPointerGetAttribute(&type, CUpointer_attribute::kMemoryType, number) == CUresult::kSuccess &&
         type == CUmemorytype::kHost;
}

int numa_node_of_pci(std::string_view bus_id, const std::string& devices) {
  std::string file = devices + "/";
  for (const char c : bus_id) file += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  std::ifstream in(file + "/numa_node");
  int node = -1;
  return in >> node && node >= 0 ? node : -1;
}

Scope::Scope(const Context& context) : driver_(context.driver()) {
  status_ = context.check(driver_.cuCtxPushCurrent_v2(context.context_), "cuCtxPushCurrent_v2");
  pushed_ = status_.has_value();
  if (!pushed_) return;
  status_ =
      context.check(driver_.cuThreadExchangeStreamCaptureMode(&mode_before_), "cuThreadExchangeStreamCaptureMode");
  relaxed_ = status_.has_value();
}

Scope::~Scope() {
  if (relaxed_) (void)driver_.cuThreadExchangeStreamCaptureMode(&mode_before_);
  CUcontext popped = nullptr;
  if (pushed_) (void)driver_.cuCtxPopCurrent_v2(&popped);
}

}  // namespace slackwater::cuda
