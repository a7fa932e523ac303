#include "base/log.hpp"

#include <unistd.h>

#include <exception>

namespace slackwater {
namespace {

// One write, so that lines of several ranks and threads do not mix. If stderr refuses it, the message is lost.
void write_to_stderr(std::string_view message) {
  const std::string line = fmt::format("slackwater: {}\n", message);
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace

Log::Log(LogSink sink) : sink_(std::move(sink)) {}

void Log::write(LogLevel level, std::string_view message) const noexcept {
  try {
    if (sink_) {
      sink_(level, message);
    } else if (level != LogLevel::kInfo) {
      write_to_stderr(message);
    }
  } catch (const std::exception&) {
    // A sink that throws breaks its contract, but a lost message must not end the trainer.
  } catch (...) {
  }
}

}  // namespace slackwater
