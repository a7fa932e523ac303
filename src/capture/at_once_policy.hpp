// Decides which tensors are captured inside save(). No other place decides it. Callers state facts (Tensor::updates,
// Tensor::watched), or ask for it explicitly (Tensor::at_once).
//   always      tensors the caller asked for, tensors that were torn before, and volatile tensors that nobody watches.
//               If there is no room for one of these, save() waits for its copies (capture.hpp).
//   if it fits  volatile tensors that the caller watches. Those that do not fit are captured later, and the caller
//               notices if they are written before that.
// A tensor is volatile if it may be written at any time, or if it is small and nobody knows when it is written.
// Thread rule: the trainer's thread.
#pragma once

#include <cstdint>
#include <vector>

#include "capture/torn_tensors.hpp"
#include "slackwater/tensor.hpp"

namespace slackwater {

inline constexpr std::uint64_t kMaxAtOnceBytes = 64u << 20;  // room for the early copies of one state
inline constexpr std::uint64_t kEarlyCopyAlignment = 64;     // each early copy begins at a multiple of this
inline constexpr std::uint64_t kMaxSmallTensorBytes = 4u << 10;

// Sets Tensor::at_once for the tensors that are captured inside save(), and returns their indices in ascending order.
[[nodiscard]] std::vector<std::uint32_t> choose_at_once(State& state, TornTensors& torn);

}  // namespace slackwater
