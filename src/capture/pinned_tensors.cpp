#include "capture/pinned_tensors.hpp"

#include <algorithm>
#include <memory>
#include <vector>

#include "base/result.hpp"
#include "capture/capture.hpp"

namespace slackwater {

Status wait_for_pinned(const State& state, Devices& devices) {
  std::vector<const void*> addresses;
  for (const Tensor& tensor : state.tensors) {
    if (tensor.device == kHostDevice && tensor.data != nullptr) addresses.push_back(tensor.data);
  }
  if (!devices.any_pinned(addresses)) return {};
  // All are recorded before the first wait: nothing that is queued meanwhile is waited for.
  std::vector<std::shared_ptr<Event>> produced;
  for (AsyncDevice* const device : devices.opened()) {
    const auto on_device = [&](const StreamRef& stream) { return stream.device == device->ordinal(); };
    if (!state.after.empty() && std::ranges::none_of(state.after, on_device)) continue;
    const std::vector<StreamHandle> streams = streams_on(state.after, device->ordinal());
    for (const StreamHandle stream : streams) SW_TRY(check_not_capturing(*device, stream));
    SW_ASSIGN(produced.emplace_back(), device->record_event(streams));
  }
  for (const auto& event : produced) SW_TRY(event->wait());
  return {};
}

}  // namespace slackwater
