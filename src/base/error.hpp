// Turns errno into an Error. Pure functions; any thread.
#pragma once

#include <string>

#include "slackwater/error.hpp"

namespace slackwater {

// errno decides kind and retryable: ENOSPC is kNoSpace, EACCES is kPermission, EAGAIN and ENOMEM can be retried, and so
// on. `doing` says what failed: "cannot create the file".
[[nodiscard]] Error error_from_errno(int sys_errno, std::string doing, std::string path = {});

// The result of a system call that returns 0 on success and sets errno otherwise.
[[nodiscard]] Status status_from_errno(int answer, const char* doing, const std::string& path);

}  // namespace slackwater
