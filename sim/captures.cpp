#include "sim/captures.hpp"

#include <algorithm>
#include <memory>
#include <thread>
#include <utility>

namespace slackwater::sim {
namespace {

void leave(Capture& capture) {
  capture.ended = true;
  for (const StreamPtr& stream : capture.streams) {
    stream->capture.reset();
    stream->recorded = 0;
    stream->joined = false;
    stream->captured.clear();
  }
}

}  // namespace

CUresult Captures::begin(const StreamPtr& stream, cuda::CUstreamCaptureMode mode) {
  if (stream->legacy) return CUresult::kStreamCaptureUnsupported;
  if (stream->capture != nullptr) return CUresult::kIllegalState;
  auto capture = std::make_shared<Capture>();
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  capture->streams.push_back(stream);
  stream->capture = capture;
  captures_.push_back(capture);
  return CUresult::kSuccess;
}

CUresult Captures::end(const StreamPtr& stream, Graph& graph) {
  const CapturePtr capture = stream->capture;
  if (capture == nullptr) return CUresult::kIllegalState;
  if (capture->streams.front() != stream) return CUresult::kStreamCaptureUnmatched;
  if (capture->mode != cuda::CUstreamCaptureMode::kRelaxed && capture->thread != std::this_thread::get_id()) {
    return CUresult::kStreamCaptureWrongThread;
  }
  const bool unjoined = std::any_of(capture->streams.begin() + 1, capture->streams.end(),
                                    [](const StreamPtr& forked) { return !forked->joined; });
  leave(*capture);
  std::erase(captures_, capture);
  if (capture->invalidated) return CUresult::kStreamCaptureInvalidated;
  if (unjoined) return CUresult::kStreamCaptureUnjoined;
  graph = std::move(capture->graph);
  return CUresult::kSuccess;
}

void Captures::abandon(Stream& stream) {
  const CapturePtr capture = stream.capture;
  if (capture == nullptr) return;
  leave(*capture);
  std::erase(captures_, capture);
}

CUresult Captures::check_unsafe(const ThreadState& thread) {
  if (thread.capture_mode == cuda::CUstreamCaptureMode::kRelaxed) return CUresult::kSuccess;
  CUresult result = CUresult::kSuccess;
  for (const CapturePtr& capture : captures_) {
    const bool own = capture->thread == std::this_thread::get_id();
    const bool covered = own ? capture->mode != cuda::CUstreamCaptureMode::kRelaxed
                             : capture->mode == cuda::CUstreamCaptureMode::kGlobal &&
                                   thread.capture_mode == cuda::CUstreamCaptureMode::kGlobal;
    if (!covered) continue;
    capture->invalidated = true;
    result = CUresult::kStreamCaptureUnsupported;
  }
  return result;
}

bool Captures::any_implicit(const Device& device) const {
  return std::ranges::any_of(captures_, [&device](const CapturePtr& capture) {
    return std::ranges::any_of(
        capture->streams, [&device](const StreamPtr& stream) { return stream->device == &device && stream->blocking; });
  });
}

bool Captures::spoil_implicit(const Device& device) {
  if (!any_implicit(device)) return false;
  for (const CapturePtr& capture : captures_) {
    for (const StreamPtr& stream : capture->streams) {
      if (stream->device == &device && stream->blocking) capture->invalidated = true;
    }
  }
  return true;
}

CUresult Captures::wait_for(const StreamPtr& stream, Event& event) {
  if (event.capture == nullptr) {
    // Work from before the capture. A graph that is replayed later cannot wait for it.
    if (event.record == nullptr) return CUresult::kSuccess;
    stream->capture->invalidated = true;
    return CUresult::kStreamCaptureIsolation;
  }
  if (event.capture->ended) return CUresult::kCapturedEvent;
  if (stream->capture == nullptr) {
    if (stream->legacy) {
      event.capture->invalidated = true;
      return CUresult::kStreamCaptureImplicit;
    }
    stream->capture = event.capture;
    event.capture->streams.push_back(stream);
  } else if (stream->capture != event.capture) {
    stream->capture->invalidated = event.capture->invalidated = true;
    return CUresult::kStreamCaptureMerge;
  }
  const StreamPtr origin = event.captured_on.lock();
  stream->captured.insert(event.captured.begin(), event.captured.end());
  if (origin != nullptr && origin->recorded == event.captured_at) origin->joined = true;
  ++stream->recorded;
  stream->joined = false;
  return CUresult::kSuccess;
}

}  // namespace slackwater::sim
