// ProgressBar: one line on the terminal that is rewritten, and erased at the end. Prints nothing if stderr is not a
// terminal. Thread rule: update() from any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

namespace slackwater::cli {

class ProgressBar {
 public:
  explicit ProgressBar(std::string what);  // "step 42"
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // Draws at most ten times per second.
  void update(std::uint64_t done_bytes, std::uint64_t total_bytes);

 private:
  const std::string what_;
  const bool shown_;
  const std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
  std::mutex mutex_;
  std::chrono::steady_clock::time_point drawn_{};  // guarded by mutex_
};

}  // namespace slackwater::cli
