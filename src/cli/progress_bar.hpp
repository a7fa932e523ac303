// ProgressBar: one line on the terminal that is rewritten, and erased at the end. Prints nothing if stderr is not a
// terminal. One thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace slackwater::cli {

class ProgressBar {
 public:
  explicit ProgressBar(std::string what);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void update(std::uint64_t done, std::uint64_t total);
  void update(const std::string& what, std::uint64_t done, std::uint64_t total);  // another text in front

 private:
  std::string what_;
  const bool shown_;
  std::chrono::steady_clock::time_point drawn_{};
  std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
};

}  // namespace slackwater::cli
