// Exported functions: initialisation, devices, primary contexts.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "sim/driver_api.hpp"
#include "sim/error_names.hpp"
#include "sim/simulator.hpp"

namespace slackwater::cuda {

using namespace slackwater::sim;

namespace {

void put_text(const char* text, char* to, int capacity) {
  const std::size_t length = std::min(std::strlen(text), static_cast<std::size_t>(capacity) - 1);
  std::memcpy(to, text, length);
  to[length] = '\0';
}

}  // namespace

CUresult cuInit(unsigned int flags) {
  return enter("cuInit", kAlways,
               [&](Simulator& sim, Call&) { return flags == 0 ? sim.init() : CUresult::kInvalidValue; });
}

CUresult cuGetErrorName(CUresult error, const char** name) {
  return enter("cuGetErrorName", kAlways, [&](Simulator&, Call&) {
    if (name == nullptr) return CUresult::kInvalidValue;
    const ErrorText* const known = find_error(error);
    *name = known != nullptr ? known->name : nullptr;
    return known != nullptr ? CUresult::kSuccess : CUresult::kInvalidValue;
  });
}

CUresult cuGetErrorString(CUresult error, const char** text) {
  return enter("cuGetErrorString", kAlways, [&](Simulator&, Call&) {
    if (text == nullptr) return CUresult::kInvalidValue;
    const ErrorText* const known = find_error(error);
    *text = known != nullptr ? known->text : nullptr;
    return known != nullptr ? CUresult::kSuccess : CUresult::kInvalidValue;
  });
}

CUresult cuDeviceGetCount(int* count) {
  return enter("cuDeviceGetCount", kInit, [&](Simulator& sim, Call&) {
    if (count == nullptr) return CUresult::kInvalidValue;
    *count = static_cast<int>(sim.devices.size());
    return CUresult::kSuccess;
  });
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  return enter("cuDeviceGet", kInit, [&](Simulator& sim, Call&) {
    if (device == nullptr) return CUresult::kInvalidValue;
    if (sim.device_at(ordinal) == nullptr) return CUresult::kInvalidDevice;
    *device = ordinal;
    return CUresult::kSuccess;
  });
}

CUresult cuDeviceGetName(char* name, int capacity, CUdevice device) {
  return enter("cuDeviceGetName", kInit, [&](Simulator& sim, Call&) {
    if (name == nullptr || capacity <= 0) return CUresult::kInvalidValue;
    if (sim.device_at(device) == nullptr) return CUresult::kInvalidDevice;
    put_text("Slackwater simulated device", name, capacity);
    return CUresult::kSuccess;
  });
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  return enter("cuDeviceGetAttribute", kInit, [&](Simulator& sim, Call&) {
    const Device* const found = sim.device_at(device);
    if (value == nullptr) return CUresult::kInvalidValue;
    if (found == nullptr) return CUresult::kInvalidDevice;
    switch (attribute) {
      case CUdevice_attribute::kMaxPitch: *value = kMaxPitch; return CUresult::kSuccess;
      case CUdevice_attribute::kPciBusId: *value = found->ordinal + 1; return CUresult::kSuccess;
      case CUdevice_attribute::kPciDeviceId:
      case CUdevice_attribute::kPciDomainId: *value = 0; return CUresult::kSuccess;
      case CUdevice_attribute::kAsyncEngineCount: *value = 2; return CUresult::kSuccess;
      case CUdevice_attribute::kUnifiedAddressing:
      case CUdevice_attribute::kStreamPrioritiesSupported:
      case CUdevice_attribute::kHostRegisterSupported: *value = 1; return CUresult::kSuccess;
      case CUdevice_attribute::kComputeCapabilityMajor: *value = 8; return CUresult::kSuccess;
      case CUdevice_attribute::kComputeCapabilityMinor: *value = 0; return CUresult::kSuccess;
      case CUdevice_attribute::kHostNumaId: *value = found->config.numa_node; return CUresult::kSuccess;
    }
    return CUresult::kInvalidValue;
  });
}

CUresult cuDeviceGetPCIBusId(char* bus_id, int capacity, CUdevice device) {
  return enter("cuDeviceGetPCIBusId", kInit, [&](Simulator& sim, Call&) {
    if (bus_id == nullptr || capacity <= 0) return CUresult::kInvalidValue;
    if (sim.device_at(device) == nullptr) return CUresult::kInvalidDevice;
    char text[32];
    std::snprintf(text, sizeof text, "0000:%02X:00.0", static_cast<unsigned>(device) + 1);
    put_text(text, bus_id, capacity);
    return CUresult::kSuccess;
  });
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  return enter("cuDevicePrimaryCtxRetain", kInit, [&](Simulator& sim, Call&) {
    Device* const found = sim.device_at(device);
    if (context == nullptr) return CUresult::kInvalidValue;
    if (found == nullptr) return CUresult::kInvalidDevice;
    if (found->retained++ == 0) {
      found->context = reinterpret_cast<CUcontext>(sim.new_handle());
      found->legacy_stream = std::make_shared<Stream>(Stream{.device = found, .legacy = true});
    }
    *context = found->context;
    return CUresult::kSuccess;
  });
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  return enter("cuDevicePrimaryCtxRelease_v2", kInit, [&](Simulator& sim, Call& call) {
    Device* const found = sim.device_at(device);
    if (found == nullptr) return CUresult::kInvalidDevice;
    if (found->retained == 0) return CUresult::kInvalidContext;
    if (--found->retained == 0) sim.destroy_context(call, *found);
    return CUresult::kSuccess;
  });
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int* flags, int* active) {
  return enter("cuDevicePrimaryCtxGetState", kInit, [&](Simulator& sim, Call&) {
    const Device* const found = sim.device_at(device);
    if (flags == nullptr || active == nullptr) return CUresult::kInvalidValue;
    if (found == nullptr) return CUresult::kInvalidDevice;
    *flags = 0;
    *active = found->retained > 0 ? 1 : 0;
    return CUresult::kSuccess;
  });
}

CUresult cuCtxPushCurrent_v2(CUcontext context) {
  return enter("cuCtxPushCurrent_v2", kInit, [&](Simulator& sim, Call& call) {
    if (sim.device_of(context) == nullptr) return CUresult::kInvalidContext;
    call.thread.contexts.push_back(context);
    return CUresult::kSuccess;
  });
}

CUresult cuCtxPopCurrent_v2(CUcontext* context) {
  return enter("cuCtxPopCurrent_v2", kInit, [&](Simulator&, Call& call) {
    if (call.thread.contexts.empty()) return CUresult::kInvalidContext;
    if (context != nullptr) *context = call.thread.contexts.back();
    call.thread.contexts.pop_back();
    return CUresult::kSuccess;
  });
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  return enter("cuCtxGetCurrent", kInit, [&](Simulator&, Call& call) {
    if (context == nullptr) return CUresult::kInvalidValue;
    *context = call.thread.contexts.empty() ? nullptr : call.thread.contexts.back();
    return CUresult::kSuccess;
  });
}

CUresult cuCtxSetCurrent(CUcontext context) {
  return enter("cuCtxSetCurrent", kInit, [&](Simulator& sim, Call& call) {
    if (context != nullptr && sim.device_of(context) == nullptr) return CUresult::kInvalidContext;
    if (!call.thread.contexts.empty()) call.thread.contexts.pop_back();
    if (context != nullptr) call.thread.contexts.push_back(context);
    return CUresult::kSuccess;
  });
}

CUresult cuCtxSynchronize() {
  return enter("cuCtxSynchronize", kContext | kUnsafe, [&](Simulator& sim, Call& call) {
    Device& device = *call.device;
    sim.schedule.wait_for_device(call, device);
    return device.error;
  });
}

CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  return enter("cuCtxGetStreamPriorityRange", kContext, [&](Simulator&, Call&) {
    if (least != nullptr) *least = kLeastPriority;
    if (greatest != nullptr) *greatest = kGreatestPriority;
    return CUresult::kSuccess;
  });
}

}  // namespace slackwater::cuda
