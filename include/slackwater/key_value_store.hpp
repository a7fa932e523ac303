// KeyValueStore: a small store that all ranks of a run reach, for the few short texts by which they agree on a version: the
// store of torch.distributed, one over MPI, or your own. Nothing in it has to outlive the run, and no checkpoint lies there.
// Thread rule: calls come from several threads, one at a time each. No call may wait for another rank.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "slackwater/error.hpp"

namespace slackwater {

class KeyValueStore {
 public:
  virtual ~KeyValueStore() = default;

  // Whoever gets the key from now on gets all of the value. Replaces an earlier one.
  [[nodiscard]] virtual Status set(const std::string& key, const std::string& value) = 0;
  // In the order of the keys; nullopt for one that is not there (yet).
  [[nodiscard]] virtual Result<std::vector<std::optional<std::string>>> get(const std::vector<std::string>& keys) = 0;
  // What is not there is no error; what cannot be removed stays, and does no harm.
  virtual void remove(const std::vector<std::string>& keys) = 0;
};

}  // namespace slackwater
