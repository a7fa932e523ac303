#include "engine/capture.hpp"

#include <span>

#include <fmt/format.h>

#include "base/result.hpp"
#include "base/units.hpp"

namespace slackwater {
namespace {

constexpr std::uint64_t kEarlyCopyAlignment = 64;
constexpr std::uint32_t kPrefetchAhead = 2;  // samples lie in cold memory: their cache misses are most of a save()

StridedMemory packed_at(std::byte* data, std::uint64_t size_bytes) {
  return {.data = data, .item_bytes = 1, .shape = {static_cast<std::int64_t>(size_bytes)}, .strides = {}};
}

// Builds a Capture step by step; see capture().
class Capturing {
 public:
  Capturing(const State& state, Devices& devices, const std::set<std::string, std::less<>>& known_torn,
            const CaptureOptions& options)
      : state_(state), devices_(devices), known_torn_(known_torn), options_(options) {}

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
      SW_ASSIGN(source.passage, passage_of(tensor));
      source.device = result_.devices[source.passage].device;
    }
    const bool torn_before = !known_torn_.empty() && known_torn_.contains(tensor.name);
    const std::uint64_t bytes = source.memory.size_bytes();
    if ((tensor.at_once || torn_before) && bytes > 0) {
      if (early_bytes_ + bytes <= kMaxAtOnceBytes) {
        early_bytes_ += round_up(bytes, kEarlyCopyAlignment);
        (source.passage == kOnHost ? early_ : early_on_device_[source.passage]).push_back(index);
        result_.at_once_size_bytes += bytes;
      } else {
        result_.needs_fence = true;
      }
    }
    result_.sources.push_back(std::move(source));
    return {};
  }

  Result<std::uint32_t> passage_of(const Tensor& tensor) {
    for (std::uint32_t i = 0; i < result_.devices.size(); ++i) {
      if (result_.devices[i].device->ordinal() == tensor.device) return i;
    }
    SW_ASSIGN(AsyncDevice* const device, open_device(tensor, devices_, state_.after));
    result_.devices.push_back({.device = device, .produced = nullptr, .clones = nullptr, .guarded = {}});
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
      if (streams.size() > 1) {  // whichever of them produces a tensor, it is duplicated behind that
        SW_ASSIGN(const auto all, part.device->mark(streams));
        SW_TRY(part.device->hold(streams.front(), *all));
      }
      std::vector<StridedMemory> tensors;
      for (const std::uint32_t i : early) tensors.push_back(result_.sources[i].memory);
      SW_ASSIGN(part.clones, part.device->clone(tensors, streams.front()));
      for (std::size_t i = 0; i < early.size(); ++i) take_over(early[i], part.clones->addresses()[i]);
    }
    SW_ASSIGN(part.produced, part.device->mark(streams));  // behind the duplicates, too
    if (part.clones != nullptr) {  // and whichever writes to it next does so behind its duplicate
      for (const StreamHandle stream : std::span(streams).subspan(1)) {
        SW_TRY(part.device->hold(stream, *part.produced));
      }
    }
    return {};
  }

  // From now on the source is its early copy.
  void take_over(std::uint32_t index, std::byte* copy) {
    StridedMemory& memory = result_.sources[index].memory;
    memory = packed_at(copy, memory.size_bytes());
    if (is_early_.empty()) is_early_.resize(state_.tensors.size());
    is_early_[index] = true;
  }

  Status guard() {
    for (std::uint32_t i = 0; i < result_.sources.size(); ++i) {
      Source& source = result_.sources[i];
      if (i + kPrefetchAhead < result_.sources.size()) {
        const Source& ahead = result_.sources[i + kPrefetchAhead];
        ahead.device->prefetch(ahead.memory, options_.seed);
      }
      if ((!is_early_.empty() && is_early_[i]) || source.memory.size_bytes() == 0) continue;
      source.guarded = true;
      if (source.passage != kOnHost) {
        DeviceCapture& part = result_.devices[source.passage];
        source.guard = static_cast<std::uint32_t>(part.guarded.size());
        part.guarded.push_back(i);
        if (!options_.whole_fingerprint) continue;
        SW_TRY(part.produced->wait());  // every byte is looked at here and now
      }
      SW_ASSIGN(source.fingerprint,
                source.device->fingerprint(source.memory, options_.seed, options_.whole_fingerprint));
    }
    return {};
  }

  const State& state_;
  Devices& devices_;
  const std::set<std::string, std::less<>>& known_torn_;
  const CaptureOptions& options_;
  Capture result_;
  std::uint64_t early_bytes_ = 0;
  std::vector<std::uint32_t> early_;                         // in host memory
  std::vector<std::vector<std::uint32_t>> early_on_device_;  // by passage
  std::vector<bool> is_early_;                               // empty while there is none
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

Result<AsyncDevice*> open_device(const Tensor& tensor, Devices& devices, std::span<const StreamRef> after) {
  auto device = devices.cuda(tensor.device);
  if (!device) {
    Error error = std::move(device).error();
    error.message = fmt::format("tensor '{}' cannot be captured: {}", tensor.name, error.message);
    return fail(std::move(error));
  }
  for (const StreamHandle stream : streams_on(after, tensor.device)) {
    SW_ASSIGN(const bool capturing, (*device)->capturing(stream));
    if (capturing) {
      return fail(
          ErrorKind::kInvalidArgument,
          fmt::format("save() was called while a CUDA graph is being captured on a stream of {}; call it before "
                      "the capture begins or after it ended",
                      (*device)->name()));
    }
  }
  return *device;
}

StridedMemory memory_of(const Tensor& tensor) {
  return simplify(StridedMemory{.data = static_cast<std::byte*>(const_cast<void*>(tensor.data)),
                                .item_bytes = item_bytes(tensor.dtype),
                                .shape = tensor.shape,
                                .strides = tensor.strides});
}

Result<Capture> capture(const State& state, Devices& devices, const std::set<std::string, std::less<>>& known_torn,
                        const CaptureOptions& options) {
  return Capturing(state, devices, known_torn, options).run();
}

}  // namespace slackwater
