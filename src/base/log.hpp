// Log: formats messages and passes them to Options::log. Without a sink, warnings and errors go to stderr as
// "slackwater: ...".
// Owner: the engine. Thread rule: thread-safe. It never throws, and it blocks only if the sink does.
#pragma once

#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "slackwater/options.hpp"

namespace slackwater {

class Log {
 public:
  explicit Log(LogSink sink = {});
  void write(LogLevel level, std::string_view message) const noexcept;

  template <class... Args>
  void info(fmt::format_string<Args...> format, Args&&... args) const {
    write(LogLevel::kInfo, fmt::format(format, std::forward<Args>(args)...));
  }
  template <class... Args>
  void warn(fmt::format_string<Args...> format, Args&&... args) const {
    write(LogLevel::kWarning, fmt::format(format, std::forward<Args>(args)...));
  }
  template <class... Args>
  void error(fmt::format_string<Args...> format, Args&&... args) const {
    write(LogLevel::kError, fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  LogSink sink_;  // constant after construction
};

}  // namespace slackwater
