// Report: collects the checks of one run and prints them as they come, or as one JSON document at the end. With several
// ranks, only rank 0 prints a report. The others print their WARN and FAIL lines to stderr, with their host's name.
// Owner: the verb. Thread rule: one thread.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "cli/doctor/check.hpp"
#include "cli/doctor/settings.hpp"

namespace slackwater::cli::doctor {

// This process among those that torchrun has started.
struct Ranks {
  int rank = 0;
  int local_rank = 0;
  int world = 1;
};
[[nodiscard]] Ranks ranks_from_environment();
[[nodiscard]] std::string host_name();

class Report {
 public:
  Report(const Settings& settings, const Ranks& ranks) : settings_(settings), ranks_(ranks) {}
  void add(Check check);
  // The summary, or the JSON document.
  void print_end(double seconds) const;
  [[nodiscard]] std::size_t count(Verdict verdict) const { return counts_[static_cast<std::size_t>(verdict)]; }

 private:
  const Settings& settings_;
  const Ranks ranks_;
  std::vector<Check> checks_;
  std::array<std::size_t, 4> counts_{};
};

}  // namespace slackwater::cli::doctor
