// Digests of the tensors that other ranks hold too. With them the leader sees whether the replicas are the same.
// save() takes them over all bytes, at about the speed of the memory bus, or of the device's bus for a CUDA device. So
// it does that only until this attempt has committed the same list of replicas.
// Thread rule: the trainer's thread.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/digest.hpp"
#include "device/devices.hpp"
#include "slackwater/tensor.hpp"

namespace slackwater {

// By replica group: the name of each box, as in the files, with the digest of its dtype, box and bytes. Sorted by name.
using ReplicaDigestsOfRank = std::map<std::string, std::vector<std::pair<std::string, Digest128>>>;

// Waits for the devices that hold such tensors. check_state() must have passed.
[[nodiscard]] Result<ReplicaDigestsOfRank> digest_replicas(const State& state, Devices& devices);

}  // namespace slackwater
