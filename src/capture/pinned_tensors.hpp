// Tensors in pinned host memory. A copy of the trainer (`non_blocking=True`) may still be filling them when save() is
// called, and only the device knows when it is done. So save() waits for the streams that produce the state before it
// reads such a tensor. States without pinned tensors, and processes without CUDA, do not wait.
// Thread rule: the trainer's thread.
#pragma once

#include "device/devices.hpp"
#include "slackwater/tensor.hpp"

namespace slackwater {

// Waits for State::after if a tensor of the state lies in pinned memory. Without streams there, for the legacy default
// stream of every device in use. kInvalidArgument while a graph is being captured on one of them.
[[nodiscard]] Status wait_for_pinned(const State& state, Devices& devices);

}  // namespace slackwater
