// Reads that failed are tried again before anybody draws a conclusion: servers fail over, paths come back, a stale handle is
// replaced by opening anew. What still fails is raised; it is never taken for damage. Only for calls that change nothing:
// a failed write or sync is never repeated (os/durable.hpp).
#pragma once

#include <array>
#include <chrono>
#include <thread>

#include "slackwater/error.hpp"

namespace slackwater {

// Trouble of the storage that may pass. Not so: "not found", "permission", damage, and what the caller did wrong.
[[nodiscard]] inline bool may_pass(const Error& error) {
  return error.kind == ErrorKind::kIo || error.kind == ErrorKind::kTimeout || error.retryable;
}

// `read` answers a Result. Pauses on the calling thread, a quarter of a second in all.
template <class Read>
[[nodiscard]] auto retry_read(const Read& read) -> decltype(read()) {
  constexpr std::array kPauses{std::chrono::milliseconds(1), std::chrono::milliseconds(10),
                               std::chrono::milliseconds(50), std::chrono::milliseconds(200)};
  auto result = read();
  for (const auto pause : kPauses) {
    if (result || !may_pass(result.error())) break;
    std::this_thread::sleep_for(pause);
    result = read();
  }
  return result;
}

}  // namespace slackwater
