#include "mailbox.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.hpp"

namespace slackwater::python {

Mailbox::~Mailbox() {
  if (deferred_.empty() || !Py_IsInitialized() || !PyGILState_Check())
    return;  // better a leak than a call into an interpreter that ends
  for (PyObject* object : deferred_) Py_DECREF(object);
}

void Mailbox::post(LogLevel level, std::string_view line) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    if (lines_.size() < kMaxLines) {
      lines_.emplace_back(level, line);
    } else {
      ++lost_lines_;
    }
    news_ = true;
  } catch (...) {
    return;  // no memory for a log line: the error itself is kept by the snapshot
  }
  arrived_.notify_all();
}

void Mailbox::defer_decref(PyObject* object) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    deferred_.push_back(object);
    news_ = true;
  } catch (...) {
    return;
  }
  arrived_.notify_all();
}

void Mailbox::poke() {
  {
    const std::lock_guard lock(mutex_);
    news_ = true;
  }
  arrived_.notify_all();
}

std::vector<std::pair<LogLevel, std::string>> Mailbox::collect() {
  std::vector<std::pair<LogLevel, std::string>> lines;
  std::vector<PyObject*> unused;
  {
    const std::lock_guard lock(mutex_);
    lines.assign(std::make_move_iterator(lines_.begin()), std::make_move_iterator(lines_.end()));
    lines_.clear();
    if (lost_lines_ > 0) {
      lines.emplace_back(LogLevel::kWarning, std::to_string(lost_lines_) + " further messages were dropped");
      lost_lines_ = 0;
    }
    unused.swap(deferred_);
  }
  for (PyObject* object : unused) Py_DECREF(object);  // outside the lock: destructors may run any Python code
  return lines;
}

bool Mailbox::wait(std::optional<std::chrono::milliseconds> timeout) {
  std::unique_lock lock(mutex_);
  const auto have_news = [this] { return news_; };
  if (timeout) {
    if (!arrived_.wait_for(lock, *timeout, have_news)) return false;
  } else {
    arrived_.wait(lock, have_news);
  }
  news_ = false;
  return true;
}

namespace {

int logging_level(LogLevel level) {  // the numbers of Python's logging
  switch (level) {
    case LogLevel::kInfo: return 20;
    case LogLevel::kWarning: return 30;
    case LogLevel::kError: return 40;
  }
  return 40;
}

LogLevel to_log_level(int level) {
  return level >= 40 ? LogLevel::kError : level >= 30 ? LogLevel::kWarning : LogLevel::kInfo;
}

}  // namespace

void bind_mailbox(nb::module_& module) {
  nb::class_<MailboxHandle>(module, "Mailbox",
                            "Log lines and released objects, on their way from engine threads to Python threads.")
      .def(nb::init<>())
      .def(
          "poke", [](MailboxHandle& self) { self.box->poke(); }, "Wake wait().")
      .def(
          "post",
          [](MailboxHandle& self, int level, const std::string& line) { self.box->post(to_log_level(level), line); },
          nb::arg("level"), nb::arg("line"), "Leave a line, as an engine thread does.")
      .def(
          "collect",
          [](MailboxHandle& self) {
            std::vector<std::pair<int, nb::object>> lines;
            for (const auto& [level, line] : self.box->collect()) {
              // A line may quote the name of a file, which need not be UTF-8.
              lines.emplace_back(
                  logging_level(level),
                  nb::steal(PyUnicode_DecodeUTF8(line.data(), static_cast<Py_ssize_t>(line.size()), "replace")));
            }
            return lines;
          },
          "Drop what is no longer read; return [(logging level, line), ...], oldest first.")
      .def(
          "wait",
          [](MailboxHandle& self, std::optional<double> timeout) { return self.box->wait(to_milliseconds(timeout)); },
          nb::arg("timeout") = nb::none(), nb::call_guard<WithoutGil>(),
          "Wait, without the GIL, until something arrives or poke() is called; False on time-out.");
}

}  // namespace slackwater::python
