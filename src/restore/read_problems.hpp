// ReadProblems: targets that do not fit what was saved, all looked at before one is refused. Thread rule: one thread.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "slackwater/error.hpp"
#include "slackwater/tensor.hpp"

namespace slackwater {

class ReadProblems {
 public:
  // `saved`: null if there is no such tensor.
  void look_at(const TensorInfo* saved, const Target& target);
  // The first problem's kind, and the words of the first few.
  [[nodiscard]] Status verdict() const;

 private:
  std::optional<Error> first_;
  std::vector<std::string> texts_;
};

}  // namespace slackwater
