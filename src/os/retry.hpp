// Retries reads. Servers fail over, paths come back, and reopening replaces a stale handle. An error that remains is
// returned; it is never taken for damage. Use it only for calls that change nothing: a failed write or sync is never
// repeated (os/durable.hpp). Any thread.
#pragma once

#include <array>
#include <chrono>
#include <thread>

#include "slackwater/error.hpp"

namespace slackwater {

// Storage errors that may go away after a while. Missing files, permissions, damage and misuse do not.
[[nodiscard]] inline bool is_transient(const Error& error) {
  return error.kind == ErrorKind::kIo || error.kind == ErrorKind::kTimeout || error.retryable;
}

// `read` returns a Result. Sleeps on the calling thread between tries, for a quarter of a second in all.
template <class Read>
[[nodiscard]] auto retry_read(const Read& read) -> decltype(read()) {
  constexpr std::array kPauses{std::chrono::milliseconds(1), std::chrono::milliseconds(10),
                               std::chrono::milliseconds(50), std::chrono::milliseconds(200)};
  auto result = read();
  for (const auto pause : kPauses) {
    if (result || !is_transient(result.error())) break;
    std::this_thread::sleep_for(pause);
    result = read();
  }
  return result;
}

}  // namespace slackwater
