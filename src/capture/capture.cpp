#include "capture/capture.hpp"

#include <algorithm>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "base/units.hpp"
#include "capture/at_once_policy.hpp"

namespace slackwater {
namespace {

StridedMemory packed_at(const std::byte* data, std::uint64_t size_bytes) {
  return {.data = const_cast<std::byte*>(data),
          .item_bytes = 1,
          .shape = {static_cast<std::int64_t>(size_bytes)},
          .strides = {}};
}

// Builds a Capture step by step; see capture().
class Capturing {
 public:
  Capturing(const State& state, Devices& devices, const CaptureOptions& options)
      : state_(state), devices_(devices), options_(options) {}

  Result<Capture> run() {
    result_.seed = options_.seed;
    result_.whole_fingerprint = options_.whole_fingerprint;
    result_.sources.reserve(state_.tensors.size());
    for (std::uint32_t i = 0; i < state_.tensors.size(); ++i) SW_TRY(add(i));
    SW_TRY(copy_early_on_host());
    for (std::uint32_t i = 0; i < result_.devices.size(); ++i) SW_TRY(capture_device(i));
    SW_TRY(guard());
    return std::move(result_);
  }

 private:
  Status add(std::uint32_t index) {
    const Tensor& tensor = state_.tensors[index];
    Source source{.memory = memory_of(tensor), .device = &devices_.host()};
    if (tensor.device != kHostDevice) {
      SW_ASSIGN(source.device_index, device_index_of(tensor));
      source.device = result_.devices[source.device_index].device;
    }
    const std::uint64_t bytes = source.memory.size_bytes();
    if (tensor.at_once && bytes > 0) {
      if (early_bytes_ + bytes <= kMaxAtOnceBytes) {
        early_bytes_ += round_up(bytes, kEarlyCopyAlignment);
        (source.device_index == kOnHost ? early_ : early_on_device_[source.device_index]).push_back(index);
        result_.at_once_size_bytes += bytes;
      } else {
        result_.needs_fence = true;
      }
    }
    result_.sources.push_back(std::move(source));
    return {};
  }

  Result<std::uint32_t> device_index_of(const Tensor& tensor) {
    for (std::uint32_t i = 0; i < result_.devices.size(); ++i) {
      if (result_.devices[i].device->ordinal() == tensor.device) return i;
    }
    SW_ASSIGN(AsyncDevice* const device, open_device(tensor, devices_, state_.after));
    result_.devices.push_back({.device = device, .produced = nullptr, .early = nullptr, .guarded = {}});
    early_on_device_.emplace_back();
    return static_cast<std::uint32_t>(result_.devices.size() - 1);
  }

  Status copy_early_on_host() {
    std::uint64_t room = 0;
    for (const std::uint32_t i : early_) room += round_up(result_.sources[i].memory.size_bytes(), kEarlyCopyAlignment);
    result_.at_once_bytes = std::make_unique_for_overwrite<std::byte[]>(room);
    std::byte* to = result_.at_once_bytes.get();
    for (const std::uint32_t i : early_) {
      Source& source = result_.sources[i];
      const std::uint64_t bytes = source.memory.size_bytes();
      const CopyPiece piece{.tensor = &source.memory, .begin = 0, .size_bytes = bytes, .host = to};
      SW_TRY(source.device->copy_to_host({&piece, 1}));
      take_over(i, to);
      to += round_up(bytes, kEarlyCopyAlignment);
    }
    return {};
  }

  Status capture_device(std::uint32_t index) {
    DeviceCapture& part = result_.devices[index];
    const std::vector<StreamHandle> streams = streams_on(state_.after, part.device->ordinal());
    if (const auto& early = early_on_device_[index]; !early.empty()) {
      if (streams.size() > 1) {  // any of them may produce a tensor, so the copies wait for all
        SW_ASSIGN(const auto all, part.device->record_event(streams));
        SW_TRY(part.device->stream_wait(streams.front(), *all));
      }
      std::vector<StridedMemory> tensors;
      for (const std::uint32_t i : early) tensors.push_back(result_.sources[i].memory);
      SW_ASSIGN(part.early, part.device->copy_early(tensors, streams.front()));
      for (std::size_t i = 0; i < early.size(); ++i) {
        take_over(early[i], part.early->addresses()[i]);
        Source& source = result_.sources[early[i]];
        source.device = &devices_.host();
        source.early_from = std::exchange(source.device_index, kOnHost);
      }
    }
    SW_ASSIGN(part.produced, part.device->record_event(streams));  // after the early copies, too
    if (part.early != nullptr) {  // any of them may write to a tensor next, so they wait for its copy
      for (const StreamHandle stream : std::span(streams).subspan(1)) {
        SW_TRY(part.device->stream_wait(stream, *part.produced));
      }
    }
    return {};
  }

  // From now on the source is the early copy.
  void take_over(std::uint32_t index, const std::byte* copy) {
    StridedMemory& memory = result_.sources[index].memory;
    memory = packed_at(copy, memory.size_bytes());
    if (is_early_.empty()) is_early_.resize(state_.tensors.size());
    is_early_[index] = true;
  }

  Status guard() {
    for (std::uint32_t i = 0; i < result_.sources.size(); ++i) {
      Source& source = result_.sources[i];
      if ((!is_early_.empty() && is_early_[i]) || source.memory.size_bytes() == 0) continue;
      source.guarded = true;
      if (source.device_index == kOnHost) {
        guarded_.push_back(&source);
        continue;
      }
      DeviceCapture& part = result_.devices[source.device_index];
      source.guard = static_cast<std::uint32_t>(part.guarded.size());
      part.guarded.push_back(i);
    }
    SW_TRY(fingerprint_host());
    return options_.whole_fingerprint ? fingerprint_devices() : Status();
  }

  Status fingerprint_host() {
    std::vector<const StridedMemory*> tensors(guarded_.size());
    std::ranges::transform(guarded_, tensors.begin(), [](const Source* source) { return &source->memory; });
    Device& host = devices_.host();
    auto fingerprints =
        options_.whole_fingerprint ? host.whole_fingerprints(tensors) : host.fingerprints(tensors, options_.seed);
    if (!fingerprints) return fail(std::move(fingerprints).error());
    for (std::size_t i = 0; i < tensors.size(); ++i) guarded_[i]->fingerprint = (*fingerprints)[i];
    return {};
  }

  // Every byte is read here and now.
  Status fingerprint_devices() {
    for (const DeviceCapture& part : result_.devices) {
      std::vector<const StridedMemory*> tensors;
      for (const std::uint32_t i : part.guarded) tensors.push_back(&result_.sources[i].memory);
      SW_TRY(part.produced->wait());
      SW_ASSIGN(const std::vector<std::uint64_t> fingerprints, part.device->whole_fingerprints(tensors));
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        result_.sources[part.guarded[i]].fingerprint = fingerprints[i];
      }
    }
    return {};
  }

  const State& state_;
  Devices& devices_;
  const CaptureOptions& options_;
  Capture result_;
  std::uint64_t early_bytes_ = 0;
  std::vector<std::uint32_t> early_;                         // in host memory
  std::vector<std::vector<std::uint32_t>> early_on_device_;  // by Source::device_index
  std::vector<bool> is_early_;                               // empty while there is none
  std::vector<Source*> guarded_;                             // in host memory
};

}  // namespace

std::vector<StreamHandle> streams_on(std::span<const StreamRef> streams, int ordinal) {
  std::vector<StreamHandle> handles;
  for (const StreamRef& stream : streams) {
    if (stream.device == ordinal) handles.push_back(stream.handle);
  }
  if (handles.empty()) handles.push_back(0);
  return handles;
}

Status check_not_capturing(AsyncDevice& device, StreamHandle stream, std::string_view call) {
  SW_ASSIGN(const CaptureStatus status, device.capture_status(stream));
  if (status == CaptureStatus::kNone) return {};
  return fail(ErrorKind::kInvalidArgument,
              fmt::format("{} was called while a CUDA graph is being captured on a stream of {}; call it before the "
                          "capture begins or after it ended",
                          call, device.name()));
}

Result<AsyncDevice*> open_device(const Tensor& tensor, Devices& devices, std::span<const StreamRef> after) {
  auto device = devices.cuda(tensor.device);
  if (!device) {
    Error error = std::move(device).error();
    error.message = fmt::format("tensor '{}' cannot be captured: {}", tensor.name, error.message);
    error.tensor = tensor.name;
    return fail(std::move(error));
  }
  for (const StreamHandle stream : streams_on(after, tensor.device)) SW_TRY(check_not_capturing(**device, stream));
  return *device;
}

StridedMemory memory_of(const Tensor& tensor) {
  return simplify(StridedMemory{.data = static_cast<std::byte*>(const_cast<void*>(tensor.data)),
                                .item_bytes = item_bytes(tensor.dtype),
                                .shape = tensor.shape,
                                .strides = tensor.strides});
}

Result<Capture> capture(const State& state, Devices& devices, const CaptureOptions& options) {
  return Capturing(state, devices, options).run();
}

}  // namespace slackwater
