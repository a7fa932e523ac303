// Runs a child process that writes one line per check. All checks run in children: a disk or a GPU that hangs, or a
// driver that crashes, becomes one FAIL line, and the process that must clean up is never stuck itself.
// Thread rule: one thread.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace slackwater::cli::doctor {

// Holds SIGINT, SIGTERM and SIGHUP back while it lives. run_child() looks out for them.
class HeldSignals {
 public:
  HeldSignals();
  ~HeldSignals();
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;

  [[nodiscard]] int descriptor() const { return descriptor_; }
  [[nodiscard]] int received() const { return received_; }  // 0: none so far
  void take();                                              // reads what has come

 private:
  int descriptor_ = -1;
  int received_ = 0;
};

struct ChildEnd {
  bool started = false;
  bool timed_out = false;
  bool interrupted = false;  // by a held signal
  int exit_code = -1;
  int signal = 0;          // that ended it
  std::string error_tail;  // the last of what it wrote to stderr
  [[nodiscard]] bool fine() const { return started && !timed_out && !interrupted && signal == 0 && exit_code == 0; }
  [[nodiscard]] std::string text() const;  // "ended with signal 11 (Segmentation fault)"
};

// Runs `command` (a path, or a name in PATH) with stdin closed and in a process group of its own. At the time limit, or
// when a held signal comes, the whole group is ended. It also dies with us. `on_line` returns false for a line that it
// does not understand; such lines are kept like stderr.
[[nodiscard]] ChildEnd run_child(const std::vector<std::string>& command, std::chrono::milliseconds time_limit,
                                 HeldSignals& signals, const std::function<bool(std::string_view line)>& on_line);

}  // namespace slackwater::cli::doctor
