// Which file system a location is on: the machine's own, or a bucket of an object store. Free functions; any thread.
#pragma once

#include <memory>
#include <string>

#include "os/file_system.hpp"
#include "slackwater/error.hpp"
#include "slackwater/options.hpp"

namespace slackwater {

enum class Access : std::uint8_t {
  kRead,   // names and sizes come from one list for the whole scan: FileSystem::refresh()
  kWrite,  // names are asked for each time, as whoever claims, commits or deletes must
};

// A FileSystem for `location`, whose root is `location` itself: paths begin with it. Sends no request yet.
// kUnsupported: there is no libcurl. kPermission: there are no credentials. kInvalidArgument: not such a location.
[[nodiscard]] Result<std::unique_ptr<FileSystem>> make_object_file_system(const std::string& location,
                                                                          const S3Options& options, Access access);

// The machine's own file system, or one for the object store.
[[nodiscard]] Result<std::unique_ptr<FileSystem>> make_file_system_at(const std::string& location, Access access,
                                                                      const S3Options& options = {});

}  // namespace slackwater
