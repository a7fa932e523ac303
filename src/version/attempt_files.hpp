// Attempt files: claiming the next attempt number, and noticing that another run has claimed a newer one. (catalog.hpp
// reads attempt files.) Functions without state. Thread rule: any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "os/file_system.hpp"
#include "slackwater/error.hpp"
#include "version/attempt.hpp"

namespace slackwater {

// Publishes `attempt` under the next free number, which is higher than `above`, and sets its `number`. If another run
// takes that number first, tries the one after it.
[[nodiscard]] Status publish_attempt(FileSystem& fs, const std::string& root, Attempt& attempt,
                                     std::uint32_t above = 0);

// Places the file of an attempt that was claimed elsewhere, on another tier or node: `text` holds `attempt`. Returns
// the number of the attempt that is in the way: a newer one, or one of another run with the same number. nullopt: the
// file is there now, durably. Several processes may place the same one.
[[nodiscard]] Result<std::optional<std::uint32_t>> place_attempt_file(FileSystem& fs, const std::string& root,
                                                                      const Attempt& attempt, const std::string& text);

// Removes the files of attempts long before `newest`. With the lock, also removes the private names of claims and of
// delete notes that a crash cut short, and the locks of fetches that were killed; without it, these may belong to a
// claim that is under way. (A fetch that loses its lock copies something twice.) A file that cannot be removed does no
// harm.
void remove_old_attempt_files(FileSystem& fs, const std::string& root, std::uint32_t newest, bool holds_lock);

// kAborted if the tier has a newer attempt than `ours`: another run has taken over.
[[nodiscard]] Status check_newest_attempt(FileSystem& fs, const std::string& root, std::uint32_t ours);
// The same, if the newest one there is known.
[[nodiscard]] Status check_newest_attempt(std::uint32_t newest, const std::string& root, std::uint32_t ours);

}  // namespace slackwater
