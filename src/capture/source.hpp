// Source: one tensor on its way from capture to staging. It says where the bytes are read from, and how to notice that
// they changed. A plain value.
// Lifetime: the memory belongs to the caller of save(), or to the Capture if the tensor is volatile.
#pragma once

#include <cstdint>

#include "device/device.hpp"

namespace slackwater {

inline constexpr std::uint32_t kOnHost = ~0u;  // Source::device_index of a tensor in host memory

struct Source {
  StridedMemory memory;
  Device* device = nullptr;
  bool guarded = false;                  // copied later: sampled once more after its last copy
  std::uint64_t fingerprint = 0;         // taken at save(), for host memory, or of every byte when paranoid
  std::uint32_t device_index = kOnHost;  // on an asynchronous device: index into Capture::devices
  std::uint32_t guard = 0;               // on such a device: its number among the guarded tensors there
  // The early copy of a tensor on an asynchronous device: index into Capture::devices. It lies in host memory, and its
  // bytes may be read once EarlyCopies::filled() of that device has happened.
  std::uint32_t early_from = kOnHost;
};

}  // namespace slackwater
