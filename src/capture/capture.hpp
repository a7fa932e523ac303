// Capture: what save() takes from a state on the trainer's thread, and nothing more.
//   - Fingerprints of tensors that are copied later, to notice a write before the fence.
//   - Full copies of tensors that cannot wait (volatile tensors).
//   - On a CUDA device: the point in its streams after which the state is complete, and copies of volatile tensors to
//     pinned memory, queued there. Nothing waits for the device.
// Thread rule: made by one thread, then constant.
// Lifetime: owns the early copies. Sources that are copied later belong to the caller.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "capture/source.hpp"
#include "device/devices.hpp"
#include "slackwater/tensor.hpp"

namespace slackwater {

// The part of a capture that lies on one asynchronous device.
struct DeviceCapture {
  AsyncDevice* device = nullptr;
  std::shared_ptr<Event> produced;
  std::unique_ptr<EarlyCopies> early;  // where sources of volatile tensors point; may be null
  std::vector<std::uint32_t> guarded;  // sources, in the order of Source::guard
};

struct Capture {
  std::vector<Source> sources;                 // parallel to State::tensors
  std::vector<DeviceCapture> devices;          // in the order of Source::device_index
  std::unique_ptr<std::byte[]> at_once_bytes;  // where sources of volatile tensors point
  std::uint64_t at_once_size_bytes = 0;
  std::uint64_t seed = 0;
  bool whole_fingerprint = false;
  // A tensor that must be captured inside save() did not fit. The snapshot is right only if save() waits for its
  // copies.
  bool needs_fence = false;
};

struct CaptureOptions {
  std::uint64_t seed = 0;
  bool whole_fingerprint = false;
};

// The streams of one device among those the caller named. If there is none: its legacy default stream.
[[nodiscard]] std::vector<StreamHandle> streams_on(std::span<const StreamRef> streams, int ordinal);

// kInvalidArgument while a graph is being captured on the stream. `call` is what the error names.
[[nodiscard]] Status check_not_capturing(AsyncDevice& device, StreamHandle stream, std::string_view call = "save()");

// The CUDA device a tensor lies on. kInvalidArgument while a graph is being captured on one of its streams in `after`.
[[nodiscard]] Result<AsyncDevice*> open_device(const Tensor& tensor, Devices& devices,
                                               std::span<const StreamRef> after);

// The memory of a tensor in the form that devices use.
[[nodiscard]] StridedMemory memory_of(const Tensor& tensor);

// Copies at once the tensors that have Tensor::at_once set (at_once_policy.hpp).
[[nodiscard]] Result<Capture> capture(const State& state, Devices& devices, const CaptureOptions& options);

}  // namespace slackwater
