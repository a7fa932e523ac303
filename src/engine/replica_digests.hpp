// Digests of the tensors that other ranks hold too, by which the leader sees that they are alike. Taken inside save(), of
// all their bytes (host memory: about what a memory bus carries; a CUDA device: what its bus carries), and so only until
// an attempt has committed the same list of them. Thread rule: the trainer's thread.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/digest.hpp"
#include "device/devices.hpp"
#include "slackwater/tensor.hpp"

namespace slackwater {

// By replica group: name of the box, as files have it, and digest of dtype, box and bytes; in the order of the names.
using ReplicaDigestsOfRank = std::map<std::string, std::vector<std::pair<std::string, Digest128>>>;

// Waits for the device where tensors lie on one. Needs check_state() to have passed.
[[nodiscard]] Result<ReplicaDigestsOfRank> digest_replicas(const State& state, Devices& devices);

}  // namespace slackwater
