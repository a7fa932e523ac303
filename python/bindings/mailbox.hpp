// Mailbox: what engine threads leave for Python threads to pick up: log lines, and references to Python objects whose
// memory is no longer read. Engine threads never take the GIL. Python threads collect at every call, and the settler
// thread waits here.
// Thread rule: thread-safe; collect() needs the GIL.
// Lifetime: shared by Python and everything that may still post.
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
  void defer_decref(PyObject* object) noexcept;  // takes over one reference
  void poke();                                   // wakes wait() without leaving anything

  // Drops the deferred references and returns the lines, oldest first.
  [[nodiscard]] std::vector<std::pair<LogLevel, std::string>> collect();
  // Waits until something is left or poke() is called after the last wait. False on time-out. Without the GIL.
  bool wait(std::optional<std::chrono::milliseconds> timeout);

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<std::pair<LogLevel, std::string>> lines_;  // guarded by mutex_
  std::uint64_t lost_lines_ = 0;                        // guarded by mutex_
  std::vector<PyObject*> deferred_;                     // guarded by mutex_
  bool news_ = false;                                   // guarded by mutex_
};

// What Python holds: a reference that is dropped without the GIL, unlike nanobind's own shared_ptr.
struct MailboxHandle {
  std::shared_ptr<Mailbox> box = std::make_shared<Mailbox>();
};

}  // namespace slackwater::python
