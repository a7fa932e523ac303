#include "sim/copy_call.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <set>
#include <utility>

#include "sim/copy_work.hpp"

namespace slackwater::sim {
namespace {

// One end of a copy: what the simulator knows about the address.
struct End {
  AllocationPtr allocation;  // null: host memory
  PinnedPtr pinned;          // null: pageable, if it is host memory
  std::byte* bytes = nullptr;
};

std::size_t extent(const CopyRequest& request, std::size_t pitch) {
  return request.height == 0 ? 0 : (request.height - 1) * pitch + request.width;
}

std::optional<End> resolve(const Simulator& sim, const Device& device, std::uint64_t address, Place place,
                           std::size_t extent_bytes) {
  if (AllocationPtr allocation = sim.memory.find(address, extent_bytes); allocation != nullptr) {
    if (place == Place::kHost || !allocation->mapped) return std::nullopt;
    std::byte* const bytes = allocation->at(address);
    return End{.allocation = std::move(allocation), .pinned = nullptr, .bytes = bytes};
  }
  // A range that begins in device memory but does not end there is too long.
  if (place == Place::kDevice || address == 0 || sim.memory.find(address, 1) != nullptr) return std::nullopt;
  std::optional<PinnedPtr> pinned = sim.host.find(address, extent_bytes);
  if (!pinned.has_value() || (*pinned == nullptr && sim.memory.was_freed(address))) return std::nullopt;
  End end{.allocation = nullptr, .pinned = std::move(*pinned), .bytes = reinterpret_cast<std::byte*>(address)};
  if (end.pinned != nullptr && !end.pinned->portable && end.pinned->device != device.ordinal) end.pinned.reset();
  return end;
}

// Copies that go to the same engine at the same speed. They become one op.
struct Group {
  std::vector<CopyPart> parts;
  std::vector<std::shared_ptr<const void>> held;
  std::vector<const Allocation*> memory;  // of those held
  std::set<int> devices;
  std::uint64_t bytes = 0;
};

class CopyGroups {
 public:
  CopyGroups(Simulator& sim, const Stream& stream, bool wrong) : sim_(sim), stream_(stream), wrong_(wrong) {}

  [[nodiscard]] CUresult add(const CopyRequest& request) {
    if (request.width == 0 || request.height == 0) return CUresult::kSuccess;
    if (request.height > 1 && (request.from_pitch < request.width || request.to_pitch < request.width)) {
      return CUresult::kInvalidValue;
    }
    const Device& device = *stream_.device;
    const auto from = resolve(sim_, device, request.from, request.from_place, extent(request, request.from_pitch));
    const auto to = resolve(sim_, device, request.to, request.to_place, extent(request, request.to_pitch));
    if (!from.has_value() || !to.has_value()) return CUresult::kInvalidValue;
    if (from->allocation == nullptr && to->allocation == nullptr) return CUresult::kInvalidValue;

    CopyPart part{from->bytes, to->bytes, request.width, request.height, request.from_pitch, request.to_pitch};
    if (from->allocation != nullptr && to->allocation != nullptr) {
      const bool here = from->allocation->device == device.ordinal || to->allocation->device == device.ordinal;
      if (!here) return CUresult::kInvalidValue;
      put(within_, part, {from->allocation, to->allocation});
      return CUresult::kSuccess;
    }
    const bool outward = from->allocation != nullptr;
    const AllocationPtr& allocation = outward ? from->allocation : to->allocation;
    const PinnedPtr& pinned = outward ? to->pinned : from->pinned;
    if (allocation->device != device.ordinal) return CUresult::kInvalidValue;
    std::shared_ptr<const void> host_side = pinned;
    if (!outward && pinned == nullptr) host_side = stage(part);
    Group& group = outward ? to_host_[pinned == nullptr] : to_device_[pinned == nullptr];
    put(group, part, {allocation});
    if (host_side != nullptr) group.held.push_back(std::move(host_side));
    return CUresult::kSuccess;
  }

  [[nodiscard]] bool pageable() const { return !to_host_[1].parts.empty() || !to_device_[1].parts.empty(); }
  [[nodiscard]] bool waits() const { return !to_host_[1].parts.empty(); }

  [[nodiscard]] std::vector<Task> tasks() {
    std::vector<Task> tasks;
    append(tasks, within_, EngineKind::kCompute, false);
    for (const bool is_pageable : {false, true}) {
      append(tasks, to_host_[is_pageable], EngineKind::kDeviceToHost, is_pageable);
      append(tasks, to_device_[is_pageable], EngineKind::kHostToDevice, is_pageable);
    }
    return tasks;
  }

 private:
  // The caller may reuse pageable memory when the call returns, so its bytes are copied now.
  static std::shared_ptr<const void> stage(CopyPart& part) {
    auto staging = std::make_shared<std::vector<std::byte>>(part.size_bytes());
    for (std::size_t row = 0; row < part.height; ++row) {
      std::memcpy(staging->data() + row * part.width, part.from + row * part.from_pitch, part.width);
    }
    part.from = staging->data();
    part.from_pitch = part.width;
    return staging;
  }

  static void put(Group& group, const CopyPart& part, std::initializer_list<AllocationPtr> memory) {
    group.parts.push_back(part);
    for (const AllocationPtr& allocation : memory) {
      group.held.push_back(allocation);
      group.memory.push_back(allocation.get());
      group.devices.insert(allocation->device);
    }
    group.bytes += part.size_bytes();
  }

  void append(std::vector<Task>& tasks, Group& group, EngineKind engine, bool is_pageable) {
    if (group.parts.empty()) return;
    std::vector<std::mutex*> locks;
    for (const int ordinal : group.devices) locks.push_back(&sim_.device_at(ordinal)->memory_mutex);
    std::ranges::shuffle(group.parts, sim_.shuffle);
    tasks.push_back(
        {.engine = engine,
         .work = std::make_shared<CopyWork>(std::move(group.parts), std::move(locks), std::move(group.memory), wrong_),
         .held = std::move(group.held),
         .copy_bytes = group.bytes,
         .pageable = is_pageable});
  }

  Simulator& sim_;
  const Stream& stream_;
  const bool wrong_;  // every copy delivers a wrong byte
  Group within_;      // a device, or between devices
  Group to_host_[2];  // pinned, pageable
  Group to_device_[2];
};

}  // namespace

CUresult queue_copies(Simulator& sim, Call& call, cuda::CUstream stream, const std::vector<CopyRequest>& requests,
                      std::size_t* failed, bool batch) {
  const StreamPtr found = sim.stream_of(call, stream);
  if (found == nullptr) return CUresult::kInvalidHandle;
  if (found->device->failed()) return found->device->error;
  CopyGroups groups(sim, *found, batch && (sim.broken & SWSIM_WRONG_BATCHES) != 0);
  for (std::size_t index = 0; index < requests.size(); ++index) {
    if (const CUresult result = groups.add(requests[index]); result != CUresult::kSuccess) {
      if (failed != nullptr) *failed = index;
      return result;
    }
  }
  if (found->capture != nullptr && groups.pageable()) {
    found->capture->invalidated = true;
    return CUresult::kStreamCaptureUnsupported;
  }
  const bool waits = groups.waits();
  std::vector<Task> tasks = groups.tasks();
  if (tasks.empty()) return CUresult::kSuccess;
  OpPtr queued;
  if (const CUresult result = sim.schedule.enqueue(call, found, std::move(tasks), &queued);
      result != CUresult::kSuccess) {
    return result;
  }
  if (!waits) return CUresult::kSuccess;
  sim.schedule.wait(call, queued, true);
  return found->device->error;
}

}  // namespace slackwater::sim
