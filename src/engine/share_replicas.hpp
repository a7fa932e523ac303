// ReplicaShares: which part of the tensors that several ranks hold alike this rank writes. Each rank finds out by itself, and
// what they find fits together. What was found is kept for the next state: as long as structure and addresses stay, a save()
// with replicas costs no more than one without. Owned by the Engine. Thread rule: the trainer's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "slackwater/tensor.hpp"

namespace slackwater {

class ReplicaShares {
 public:
  // Looks at a state. False: it has the State::structure of the one before, at the same addresses, so all is known. Needs
  // check_state() to have passed.
  bool study(const State& state);

  // Of the state studied last.
  // Which tensors are replicas, in any order: another number as soon as one comes or goes, as the state of an optimizer does
  // at its first step. 0: there are none.
  [[nodiscard]] std::uint64_t list() const { return known_.list; }
  // The tensors this rank writes: those that are no replicas as they are, of the others a share, or nothing. The boxes of a
  // replica group form one line of bytes, in an order that follows from their names; replica r of R writes from r/R to
  // (r+1)/R of it, each end moved to the nearest whole row of the box it falls into (the first dimension that has more than
  // one). So every byte is written once, and all write about as much. Tied tensors count once and are cut alike.
  [[nodiscard]] std::vector<Tensor> take(std::vector<Tensor> tensors) const;

  struct Rows {
    std::int64_t begin = 0;
    std::int64_t end = 0;
  };
  struct Cut {
    std::uint32_t tensor = 0;
    const void* data = nullptr;
    Rows rows;  // of the first dimension that has more than one
  };

 private:
  struct Known {
    std::shared_ptr<const void> structure;  // held, so that no other can be taken for it
    std::size_t tensor_count = 0;
    std::uint64_t list = 0;
    std::vector<Cut> cuts;  // of the replicas that are not empty, by tensor
  };
  [[nodiscard]] bool knows(const State& state) const;

  Known known_;
};

}  // namespace slackwater
