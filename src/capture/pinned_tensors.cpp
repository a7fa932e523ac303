#include "capture/pinned_tensors.hpp"

#include <algorithm>
#include <memory>
#include <vector>

#include "base/result.hpp"
#include "capture/capture.hpp"

namespace slackwater {

Status wait_for_pinned(const State& state, Devices& devices) {
  if (!devices.any_opened()) return {};
  std::vector<const void*> addresses;
  for (const Tensor& tensor : state.tensors) {
    if (tensor.device == kHostDevice && tensor.data != nullptr) addresses.push_back(tensor.data);
  }
  return wait_for_pinned(addresses, state.after, devices, "save()");
}

Status wait_for_pinned(std::span<const void* const> addresses, std::span<const StreamRef> after, Devices& devices,
                       std::string_view call) {
  if (!devices.any_pinned(addresses)) return {};
  // All are recorded before the first wait: nothing that is queued meanwhile is waited for.
  std::vector<std::shared_ptr<Event>> produced;
  for (AsyncDevice* const device : devices.opened()) {
    const auto on_device = [&](const StreamRef& stream) { return stream.device == device->ordinal(); };
    if (!after.empty() && std::ranges::none_of(after, on_device)) continue;
    const std::vector<StreamHandle> streams = streams_on(after, device->ordinal());
    for (const StreamHandle stream : streams) SW_TRY(check_not_capturing(*device, stream, call));
    SW_ASSIGN(produced.emplace_back(), device->record_event(streams));
  }
  for (const auto& event : produced) SW_TRY(event->wait());
  return {};
}

}  // namespace slackwater
