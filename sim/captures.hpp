// Captures: streams that are being captured. Work on a capturing stream is recorded, not run. A call that the capture
// cannot see invalidates it.
// Owner: Simulator. Thread rule: guarded by Simulator::mutex.
#pragma once

#include <vector>

#include "device/cuda/abi.hpp"
#include "sim/call.hpp"
#include "sim/device.hpp"
#include "sim/graph.hpp"

namespace slackwater::sim {

class Captures {
 public:
  [[nodiscard]] CUresult begin(const StreamPtr& stream, cuda::CUstreamCaptureMode mode);
  [[nodiscard]] CUresult end(const StreamPtr& stream, Graph& graph);
  void abandon(Stream& stream);  // the stream is being destroyed; does nothing if it is not capturing
  // Refuses a call that is unsafe during captures that cover this thread, and invalidates those captures.
  [[nodiscard]] CUresult check_unsafe(const ThreadState& thread);
  // Invalidates captures of streams that are implicitly ordered with the legacy stream. True if there were any.
  bool spoil_implicit(const Device& device);
  [[nodiscard]] bool any_implicit(const Device& device) const;
  // A stream waits for an event, and at least one of them belongs to a capture.
  [[nodiscard]] CUresult wait_for(const StreamPtr& stream, Event& event);

 private:
  std::vector<CapturePtr> captures_;  // in progress
};

}  // namespace slackwater::sim
