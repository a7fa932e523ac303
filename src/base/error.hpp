// Errors made from errno.
#pragma once

#include <string>

#include "slackwater/error.hpp"

namespace slackwater {

// Kind and retryable follow from errno (ENOSPC, EDQUOT -> kNoSpace; EACCES, EPERM, EROFS -> kPermission; ENOENT ->
// kNotFound; EEXIST -> kAlreadyExists; EAGAIN, EINTR, EBUSY, ENOMEM ... retryable). `doing` reads "cannot create the file".
[[nodiscard]] Error error_from_errno(int sys_errno, std::string doing, std::string path = {});

}  // namespace slackwater
