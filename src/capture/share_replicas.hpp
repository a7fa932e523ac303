// ReplicaShares: which part of the replicated tensors this rank writes. Each rank works it out by itself, and the parts
// fit together. The result is kept for the next state: as long as structure and addresses stay the same, a save() with
// replicas costs no more than one without.
// Owned by the Saver. Thread rule: the trainer's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "slackwater/tensor.hpp"

namespace slackwater {

class ReplicaShares {
 public:
  // Works out the shares of a state. False: it has the State::structure of the last one and the same addresses, so
  // there was nothing to do. check_state() must have passed.
  bool study(const State& state);

  // These two are about the state studied last.
  // Stands for the set of replicas. It changes when one comes or goes, as the state of an optimizer does at its first
  // step. 0: there are none.
  [[nodiscard]] std::uint64_t list() const { return known_.list; }
  // The tensors this rank writes: all of a tensor that is not replicated, and a share, or nothing, of one that is.
  // The boxes of a replica group form one line of bytes, in an order that follows from their names. Replica r of R
  // writes from r/R to (r+1)/R of that line. Each end is moved to the nearest whole row of the box it falls into; rows
  // are counted in the first dimension larger than 1. So every byte is written once, and all replicas write about the
  // same amount. Tied tensors count once and are cut in the same way.
  [[nodiscard]] std::vector<Tensor> take(std::vector<Tensor> tensors) const;

  struct Rows {
    std::int64_t begin = 0;
    std::int64_t end = 0;
  };
  struct Cut {
    std::uint32_t tensor = 0;
    const void* data = nullptr;
    Rows rows;  // of the first dimension larger than 1
  };

 private:
  struct Known {
    std::shared_ptr<const void> structure;  // held so that its address is not reused
    std::size_t tensor_count = 0;
    std::uint64_t list = 0;
    std::vector<Cut> cuts;  // of the replicas that are not empty, by tensor
  };
  [[nodiscard]] bool knows(const State& state) const;

  Known known_;
};

}  // namespace slackwater
