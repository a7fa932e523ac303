// KeyValueStore: a small store that all ranks of a run can reach. They use it to exchange the few short texts by which
// they agree on a version. It can be the store of torch.distributed, one over MPI, or your own. It holds no
// checkpoints, and nothing in it has to outlive the run.
// Owner: shared by the engine and whoever made it. Thread rule: thread-safe. No call may wait for another rank.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "slackwater/error.hpp"

namespace slackwater {

class KeyValueStore {
 public:
  virtual ~KeyValueStore() = default;

  // Every later get() of the key returns the complete value. Replaces an earlier value.
  [[nodiscard]] virtual Status set(const std::string& key, const std::string& value) = 0;
  // Values in the order of the keys; nullopt for a key that does not exist (yet).
  [[nodiscard]] virtual Result<std::vector<std::optional<std::string>>> get(const std::vector<std::string>& keys) = 0;
  // A missing key is not an error. A key that cannot be removed stays and does no harm.
  virtual void remove(const std::vector<std::string>& keys) = 0;
};

}  // namespace slackwater
