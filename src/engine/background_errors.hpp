// BackgroundErrors: what went wrong off the trainer's thread and was not reported yet. It keeps the first error in full
// and the steps of the later ones. wait() and close() report it once.
// Thread rule: one thread at a time (Guarded, in EngineShared).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "slackwater/error.hpp"

namespace slackwater {

// "step 4", "steps 4, 5 and 7 more (see the log)".
[[nodiscard]] std::string named_steps(const std::vector<std::uint64_t>& steps, std::uint64_t more = 0);

class BackgroundErrors {
 public:
  // `step`: the step that was not checkpointed because of it, if any.
  void add(const Error& error, std::optional<std::uint64_t> step = {});
  [[nodiscard]] const std::optional<Error>& first() const { return first_; }
  // The first error, and in its message the other steps that were not checkpointed. first() must be set.
  [[nodiscard]] Error in_words() const;

 private:
  std::optional<Error> first_;
  std::optional<std::uint64_t> step_;  // of the first
  std::vector<std::uint64_t> later_;
  std::uint64_t more_ = 0;  // beyond those
};

}  // namespace slackwater
