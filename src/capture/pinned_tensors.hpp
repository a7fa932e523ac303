// Tensors in pinned host memory. A copy of the trainer (`non_blocking=True`) may still be filling them when save() or
// restore() is called, and only the device knows when it is done. save() would read too early, and what restore() has
// placed would be overwritten. So both first wait for the streams that produce the state. States without pinned
// tensors, and processes without CUDA, do not wait.
// Thread rule: the trainer's thread.
#pragma once

#include <span>
#include <string_view>

#include "device/devices.hpp"
#include "slackwater/tensor.hpp"

namespace slackwater {

// Waits for State::after if a tensor of the state lies in pinned memory. Without streams there, for the legacy default
// stream of every device in use. kInvalidArgument while a graph is being captured on one of them.
[[nodiscard]] Status wait_for_pinned(const State& state, Devices& devices);
// The same for tensors in host memory that begin at these addresses. `call` is what errors name.
[[nodiscard]] Status wait_for_pinned(std::span<const void* const> addresses, std::span<const StreamRef> after,
                                     Devices& devices, std::string_view call);

}  // namespace slackwater
