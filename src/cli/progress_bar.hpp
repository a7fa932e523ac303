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
  // With another text in front. If the text changes, the rate is counted from here on.
  void update(const std::string& what, std::uint64_t done_bytes, std::uint64_t total_bytes);

 private:
  const bool shown_;
  std::mutex mutex_;
  std::string what_;  // guarded by mutex_, as what follows
  std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point drawn_{};
};

}  // namespace slackwater::cli
