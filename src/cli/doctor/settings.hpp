// What the user asked `slackwater doctor` for, and what every check needs to know. Plain values, constant once parsed.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "slackwater/options.hpp"

namespace slackwater::cli::doctor {

struct Settings {
  std::string directory = ".";
  std::string scratch;            // our own subdirectory of it; removed at the end
  std::uint64_t state_bytes = 0;  // of one node; 0: unknown
  std::uint64_t keep = Options().keep;
  bool json = false;
  bool quick = false;
  bool soft = false;  // speeds are never a FAIL: a quick run, or a machine that does other work
  bool torch = true;
  std::string cuda_driver = Options().cuda_driver;
  bool cuda_driver_given = false;  // by the user, who then expects it to work
  std::string python;              // empty: find one
  double torch_timeout_s = 90;

  // How long a fence, a commit or a large copy may take before its check fails.
  [[nodiscard]] std::chrono::milliseconds time_limit() const { return std::chrono::seconds(quick ? 10 : 20); }
  // The same for a single small copy.
  [[nodiscard]] static std::chrono::milliseconds short_time_limit() { return std::chrono::seconds(2); }
  // For an engine in a directory of its own below `scratch`. Says nothing on stderr.
  [[nodiscard]] Options engine_options(const std::string& name) const {
    Options options;
    options.path = scratch + "/" + name;
    options.keep = 1;
    options.cuda_driver = cuda_driver;
    options.stall_timeout = time_limit();
    options.commit_timeout = time_limit();
    options.log = [](LogLevel, std::string_view) {};
    return options;
  }
};

[[nodiscard]] inline double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}
// The value that `part` of all values do not exceed; 0.99 for p99.
[[nodiscard]] inline double percentile(std::vector<double> values, double part) {
  if (values.empty()) return 0;
  const auto at = static_cast<std::ptrdiff_t>(part * static_cast<double>(values.size() - 1) + 0.5);
  std::ranges::nth_element(values, values.begin() + at);
  return values[static_cast<std::size_t>(at)];
}

class Stopwatch {
 public:
  [[nodiscard]] double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
  }

 private:
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

}  // namespace slackwater::cli::doctor
