// Uploads that a killed run left behind in an object store. They take space, but no list of objects shows them. Those
// of older attempts may be aborted: the key names the attempt, and a run that is over sends nothing more.
// Free functions over a FileSystem; on a disk there are no such uploads. Thread rule: any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "os/file_system.hpp"
#include "slackwater/error.hpp"
#include "version/names.hpp"

namespace slackwater {

// Those of attempts before `newest`, below the root of a tier. What is not named like a file of ours is left alone.
[[nodiscard]] Result<std::vector<PendingUpload>> uploads_of_older_attempts(FileSystem& fs, const std::string& root,
                                                                           std::uint32_t newest);

// The version that a file below the root of a tier belongs to, by its path.
[[nodiscard]] std::optional<VersionName> version_of_upload(std::string_view path, std::string_view root);

}  // namespace slackwater
