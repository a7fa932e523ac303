// Pins: files in .slackwater that keep a version from being deleted by retention. Any rank may pin at any time, also
// while rank 0 is deleting the same version: VersionRemover::remove() and pin_version() settle who was first.
// Functions without state. Thread rule: any thread.
#pragma once

#include <set>
#include <string>

#include "os/file_system.hpp"
#include "slackwater/error.hpp"
#include "version/names.hpp"

namespace slackwater {

[[nodiscard]] Result<std::set<VersionName>> list_pins(FileSystem& fs, const std::string& root);

// Pins a committed version. kNotFound: there is no such version, or it has just been deleted. kBusy: its deletion takes
// long, and whether the pin came in time is not known yet.
[[nodiscard]] Status pin_version(FileSystem& fs, const std::string& root, const VersionName& version);

// Pins a version that is not decided yet. If it is committed, it was pinned before anybody could see it. If it is not,
// the pin goes with it.
[[nodiscard]] Status pin_ahead_of_commit(FileSystem& fs, const std::string& root, const VersionName& version);

// Whether an existing pin may have been confirmed to a user: it was made after the commit, or cannot be read.
[[nodiscard]] bool pin_may_be_confirmed(FileSystem& fs, const std::string& root, const VersionName& version);

}  // namespace slackwater
