// SnapshotVerdict: whether a snapshot has failed, which of its tensors were written to too early, and from when on
// nothing may change that any more. The first error stays.
// Owned by Snapshot::Impl, whose lock guards it. Thread rule: one thread at a time.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "slackwater/error.hpp"

namespace slackwater {

class SnapshotVerdict {
 public:
  // `sealed`: the caller does not look for torn tensors itself, so there is nothing to wait for.
  explicit SnapshotVerdict(bool sealed) : sealed_(sealed) {}

  [[nodiscard]] const std::optional<Error>& error() const { return error_; }
  [[nodiscard]] const std::vector<std::string>& torn_tensors() const { return torn_tensors_; }

  // The caller confirms that its tensors are unchanged.
  void seal() { sealed_ = true; }
  [[nodiscard]] bool sealed() const { return sealed_; }
  // No effect once the decision has begun: from then on only the disk decides. False: nothing has changed.
  bool fail(Error error);
  void fail_torn(std::vector<std::string> tensors, Error error);

  // Whether a decision can begin: the snapshot is sealed, or has failed.
  [[nodiscard]] bool ready() const { return sealed_ || error_.has_value(); }
  // From here on only conclude() can end the snapshot, unless it has failed already.
  void begin_decision() { deciding_ = !error_.has_value(); }
  void conclude(const Status& outcome);

 private:
  std::optional<Error> error_;
  std::vector<std::string> torn_tensors_;
  bool sealed_;
  bool deciding_ = false;
};

// The error of a snapshot whose tensor changed between save() and the fence.
[[nodiscard]] Error torn_error(const std::vector<std::string>& tensors);
// The same, for a tensor whose memory went away there.
[[nodiscard]] Error freed_error(const std::vector<std::string>& tensors);

}  // namespace slackwater
