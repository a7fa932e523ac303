// Verdict: one goal of `slackwater_bench lazy` or `commit`, and what was measured. A plain value.
#pragma once

#include <string>

namespace slackwater::bench {

struct Verdict {
  std::string what;
  double measured = 0;
  double limit = 0;  // measured must not be above it
  [[nodiscard]] bool met() const { return measured <= limit; }
};

}  // namespace slackwater::bench
