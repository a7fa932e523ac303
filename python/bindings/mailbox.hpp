// Mailbox: what engine threads leave for Python threads to pick up: log lines, and references to Python objects whose
// memory is no longer read. Engine threads never take the GIL; Python threads collect at every call, and the keeper
// thread waits here.
// Thread rule: thread-safe; collect() needs the GIL.
// Lifetime: shared by the Python side and everything that may still post.
#pragma once

#include <Python.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "slackwater/options.hpp"

namespace slackwater::python {

class Mailbox {
 public:
  static constexpr std::size_t kMaxLines = 1024;  // further lines are counted, not kept

  Mailbox() = default;
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;
  ~Mailbox();

  void post(LogLevel level, std::string_view line) noexcept;
  void bury(PyObject* object) noexcept;  // takes over one reference
  void poke();                           // wakes wait() without leaving anything

  // Drops the buried references and returns the lines, oldest first.
  [[nodiscard]] std::vector<std::pair<LogLevel, std::string>> collect();
  // Until something was left or poke() was called since the last wait. False on time-out. Without the GIL.
  bool wait(std::optional<std::chrono::milliseconds> timeout);

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<std::pair<LogLevel, std::string>> lines_;  // guarded by mutex_
  std::uint64_t lost_lines_ = 0;                        // guarded by mutex_
  std::vector<PyObject*> buried_;                       // guarded by mutex_
  bool news_ = false;                                   // guarded by mutex_
};

// What Python holds: a share that is given up without the GIL, unlike nanobind's own shared_ptr.
struct MailboxHandle {
  std::shared_ptr<Mailbox> box = std::make_shared<Mailbox>();
};

}  // namespace slackwater::python
