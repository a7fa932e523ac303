// Which part of the tensors that several ranks hold alike this rank writes. Pure; each rank finds out by itself, and what
// they find fits together.
#pragma once

#include <vector>

#include "slackwater/tensor.hpp"

namespace slackwater {

// The tensors this rank writes: those that are no replicas as they are, of the others a share, or nothing. The boxes of a
// replica group form one line of bytes, in an order that follows from their names; replica r of R writes from r/R to
// (r+1)/R of it, each end moved to the nearest whole row of the box it falls into (the first dimension that has more than
// one). So every byte is written once, and all write about as much. Tied tensors count once and are cut alike. Needs
// check_state() to have passed.
[[nodiscard]] std::vector<Tensor> share_replicas(std::vector<Tensor> tensors);

}  // namespace slackwater
