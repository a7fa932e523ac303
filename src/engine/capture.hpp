// Capture: what save() takes from a state on the trainer's thread, and nothing more: fingerprints of tensors that will be copied later
// (to notice a write before the fence), and full copies of those that cannot wait (volatile tensors). Of a CUDA device: the point in
// its streams behind which the state is complete, and duplicates of volatile tensors, queued there; nothing waits for the device.
// Thread rule: made by one thread, then constant. Lifetime: owns the early copies; lazily copied sources belong to the caller.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "device/devices.hpp"
#include "slackwater/tensor.hpp"
#include "stage/stager.hpp"

namespace slackwater {

inline constexpr std::uint64_t kMaxAtOnceBytes = 64u << 20;

// The part of a capture that lies on one asynchronous device.
struct DeviceCapture {
  AsyncDevice* device = nullptr;
  std::shared_ptr<Event> produced;
  std::unique_ptr<Clones> clones;      // where sources of volatile tensors point; may be null
  std::vector<std::uint32_t> guarded;  // sources, in the order of Source::guard
};

struct Capture {
  std::vector<Source> sources;                 // parallel to State::tensors
  std::vector<DeviceCapture> devices;          // in the order of Source::passage
  std::unique_ptr<std::byte[]> at_once_bytes;  // where sources of volatile tensors point
  std::uint64_t at_once_size_bytes = 0;
  std::uint64_t seed = 0;
  bool whole_fingerprint = false;
  // A tensor that must be taken inside save() did not fit: the snapshot is right only if save() waits for the copies.
  bool needs_fence = false;
};

struct CaptureOptions {
  std::uint64_t seed = 0;
  bool whole_fingerprint = false;
};

// Streams of one device among those the caller named; its legacy default stream when there is none.
[[nodiscard]] std::vector<StreamHandle> streams_on(std::span<const StreamRef> streams, int ordinal);

// The CUDA device a tensor lies on. kInvalidArgument while a graph is being captured on one of its streams in `after`.
[[nodiscard]] Result<AsyncDevice*> open_device(const Tensor& tensor, Devices& devices,
                                               std::span<const StreamRef> after);

// A tensor's memory as the devices see it.
[[nodiscard]] StridedMemory memory_of(const Tensor& tensor);

// `known_torn`: names of tensors that an earlier snapshot found changed before the fence; captured at once.
[[nodiscard]] Result<Capture> capture(const State& state, Devices& devices,
                                      const std::set<std::string, std::less<>>& known_torn,
                                      const CaptureOptions& options);

}  // namespace slackwater
