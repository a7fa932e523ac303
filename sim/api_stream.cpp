// Exported functions: streams, events, stream capture.
#include <algorithm>

#include "sim/driver_api.hpp"
#include "sim/simulator.hpp"

namespace slackwater::cuda {

using namespace slackwater::sim;

namespace {

// Invalidates a capture: the call cannot be part of a graph, but its stream or event is being captured.
CUresult spoil(Capture& capture, CUresult answer) {
  capture.invalidated = true;
  return answer;
}

}  // namespace

CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned int flags, int priority) {
  return enter("cuStreamCreateWithPriority", kContext, [&](Simulator& sim, Call& call) {
    if (stream == nullptr || (flags & ~kStreamNonBlocking) != 0) return CUresult::kInvalidValue;
    if (const CUresult result = sim.spend(call, SWSIM_COST_STREAM); result != CUresult::kSuccess) return result;
    const std::uintptr_t handle = sim.new_handle();
    sim.streams.emplace(
        handle, std::make_shared<Stream>(Stream{.device = call.device,
                                                .blocking = (flags & kStreamNonBlocking) == 0,
                                                .priority = std::clamp(priority, kGreatestPriority, kLeastPriority)}));
    *stream = reinterpret_cast<CUstream>(handle);
    return CUresult::kSuccess;
  });
}

CUresult cuStreamGetPriority(CUstream stream, int* priority) {
  return enter("cuStreamGetPriority", kContext, [&](Simulator& sim, Call& call) {
    const StreamPtr found = sim.stream_of(call, stream);
    if (found == nullptr) return CUresult::kInvalidHandle;
    if (priority == nullptr) return CUresult::kInvalidValue;
    *priority = found->priority;
    return CUresult::kSuccess;
  });
}

CUresult cuStreamDestroy_v2(CUstream stream) {
  return enter("cuStreamDestroy_v2", kContext | kCleanup, [&](Simulator& sim, Call&) {
    const auto found = sim.streams.find(reinterpret_cast<std::uintptr_t>(stream));
    if (found == sim.streams.end()) return sim.bad_handle(stream);
    Stream& going = *found->second;
    sim.captures.abandon(going);
    std::erase_if(going.device->orphans, [](const OpPtr& op) { return op->done; });
    if (going.tail != nullptr) going.device->orphans.push_back(going.tail);
    sim.streams.erase(found);
    return CUresult::kSuccess;
  });
}

CUresult cuStreamSynchronize(CUstream stream) {
  return enter("cuStreamSynchronize", kContext | kUnsafe, [&](Simulator& sim, Call& call) {
    const StreamPtr found = sim.stream_of(call, stream);
    if (found == nullptr) return CUresult::kInvalidHandle;
    if (found->capture != nullptr) return spoil(*found->capture, CUresult::kStreamCaptureUnsupported);
    OpPtr last = found->tail;
    if (found->legacy) {
      // A marker on the legacy stream comes after all blocking streams.
      const CUresult result = sim.schedule.enqueue(call, found, {}, &last);
      if (result != CUresult::kSuccess) return result;
    }
    sim.schedule.wait(call, last, true);
    return found->device->error;
  });
}

CUresult cuStreamQuery(CUstream stream) {
  return enter("cuStreamQuery", kContext | kUnsafe, [&](Simulator& sim, Call& call) {
    const StreamPtr found = sim.stream_of(call, stream);
    if (found == nullptr) return CUresult::kInvalidHandle;
    if (found->capture != nullptr) return spoil(*found->capture, CUresult::kStreamCaptureUnsupported);
    if (found->legacy && sim.captures.spoil_implicit(*found->device)) return CUresult::kStreamCaptureImplicit;
    if (found->device->failed()) return found->device->error;
    return sim.schedule.idle(*found) ? CUresult::kSuccess : CUresult::kNotReady;
  });
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags) {
  return enter("cuStreamWaitEvent", kContext, [&](Simulator& sim, Call& call) {
    const StreamPtr waiting = sim.stream_of(call, stream);
    const EventPtr awaited = sim.event_of(event);
    if (waiting == nullptr || awaited == nullptr) return CUresult::kInvalidHandle;
    if (flags != 0) return CUresult::kInvalidValue;
    if (waiting->capture != nullptr || awaited->capture != nullptr) return sim.captures.wait_for(waiting, *awaited);
    if ((sim.broken & SWSIM_IGNORE_WAITS) != 0) return CUresult::kSuccess;
    return sim.schedule.enqueue(call, waiting, {}, nullptr, awaited->record);
  });
}

CUresult cuEventCreate(CUevent* event, unsigned int flags) {
  return enter("cuEventCreate", kContext, [&](Simulator& sim, Call& call) {
    if (event == nullptr || (flags & ~(kEventBlockingSync | kEventDisableTiming)) != 0) return CUresult::kInvalidValue;
    if (const CUresult result = sim.spend(call, SWSIM_COST_EVENT); result != CUresult::kSuccess) return result;
    const std::uintptr_t handle = sim.new_handle();
    sim.events.emplace(handle, std::make_shared<Event>(Event{.device = call.device, .flags = flags}));
    *event = reinterpret_cast<CUevent>(handle);
    return CUresult::kSuccess;
  });
}

CUresult cuEventDestroy_v2(CUevent event) {
  return enter("cuEventDestroy_v2", kContext | kCleanup, [&](Simulator& sim, Call&) {
    if (sim.events.erase(reinterpret_cast<std::uintptr_t>(event)) == 1) return CUresult::kSuccess;
    return sim.bad_handle(event);
  });
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
  return enter("cuEventRecord", kContext, [&](Simulator& sim, Call& call) {
    const StreamPtr recorded = sim.stream_of(call, stream);
    const EventPtr found = sim.event_of(event);
    if (recorded == nullptr || found == nullptr) return CUresult::kInvalidHandle;
    if (recorded->device != found->device) return CUresult::kInvalidHandle;
    OpPtr marker;
    const CapturePtr capture = recorded->capture;
    const bool joined = recorded->joined;
    const CUresult result = sim.schedule.enqueue(call, recorded, {}, &marker);
    if (result != CUresult::kSuccess) return result;
    found->record = marker;
    found->capture = capture;
    if (capture != nullptr) {
      // A record is not work, so it does not make the stream unjoined.
      recorded->joined = joined;
      found->captured_at = --recorded->recorded;
      found->captured_on = recorded;
      found->captured = recorded->captured;
    }
    return CUresult::kSuccess;
  });
}

CUresult cuEventQuery(CUevent event) {
  return enter("cuEventQuery", kContext | kUnsafe, [&](Simulator& sim, Call&) {
    const EventPtr found = sim.event_of(event);
    if (found == nullptr) return CUresult::kInvalidHandle;
    if (found->capture != nullptr) return spoil(*found->capture, CUresult::kCapturedEvent);
    if (found->device->failed()) return found->device->error;
    return Schedule::seen_done(found->record) ? CUresult::kSuccess : CUresult::kNotReady;
  });
}

CUresult cuEventSynchronize(CUevent event) {
  return enter("cuEventSynchronize", kContext | kUnsafe, [&](Simulator& sim, Call& call) {
    const EventPtr found = sim.event_of(event);
    if (found == nullptr) return CUresult::kInvalidHandle;
    if (found->capture != nullptr) return spoil(*found->capture, CUresult::kCapturedEvent);
    const OpPtr record = found->record;  // recording the event again meanwhile makes no difference
    sim.schedule.wait(call, record, (found->flags & kEventBlockingSync) == 0);
    return found->device->error;
  });
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  return enter("cuStreamIsCapturing", kContext, [&](Simulator& sim, Call& call) {
    const StreamPtr found = sim.stream_of(call, stream);
    if (found == nullptr) return CUresult::kInvalidHandle;
    if (status == nullptr) return CUresult::kInvalidValue;
    if (found->legacy && sim.captures.any_implicit(*found->device)) return CUresult::kStreamCaptureImplicit;
    *status = CUstreamCaptureStatus::kNone;
    if (found->capture != nullptr) {
      *status = found->capture->invalidated ? CUstreamCaptureStatus::kInvalidated : CUstreamCaptureStatus::kActive;
    }
    return CUresult::kSuccess;
  });
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  return enter("cuThreadExchangeStreamCaptureMode", kInit, [&](Simulator&, Call& call) {
    if (mode == nullptr || *mode > CUstreamCaptureMode::kRelaxed) return CUresult::kInvalidValue;
    std::swap(*mode, call.thread.capture_mode);
    return CUresult::kSuccess;
  });
}

CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
  return enter("cuStreamBeginCapture_v2", kContext, [&](Simulator& sim, Call& call) {
    const StreamPtr found = sim.stream_of(call, stream);
    if (found == nullptr) return CUresult::kInvalidHandle;
    if (mode > CUstreamCaptureMode::kRelaxed) return CUresult::kInvalidValue;
    return sim.captures.begin(found, mode);
  });
}

}  // namespace slackwater::cuda
