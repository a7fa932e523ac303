// Attempt files: claiming the next attempt number, and noticing that another run has claimed a newer one. (catalog.hpp
// reads attempt files.) Functions without state. Thread rule: any thread.
#pragma once

#include <cstdint>
#include <string>

#include "os/file_system.hpp"
#include "slackwater/error.hpp"
#include "version/attempt.hpp"

namespace slackwater {

// Publishes `attempt` under the next free number, which is higher than `above`, and sets its `number`. If another run
// takes that number first, tries the one after it.
[[nodiscard]] Status publish_attempt(FileSystem& fs, const std::string& root, Attempt& attempt,
                                     std::uint32_t above = 0);

// Removes the files of attempts long before `newest`. With the lock, also removes the private names of claims that a
// crash cut short; without it, these may belong to a claim that is under way. A file that cannot be removed does no
// harm.
void remove_old_attempt_files(FileSystem& fs, const std::string& root, std::uint32_t newest, bool holds_lock);

// kAborted if the tier has a newer attempt than `ours`: another run has taken over.
[[nodiscard]] Status check_newest_attempt(FileSystem& fs, const std::string& root, std::uint32_t ours);

}  // namespace slackwater
