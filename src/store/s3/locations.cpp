#include "store/s3/locations.hpp"

#include <utility>

#include "base/result.hpp"
#include "store/s3/object_file_system.hpp"
#include "store/s3/uri.hpp"

namespace slackwater {

bool is_object_location(std::string_view location) { return location.starts_with(s3::kScheme); }

Result<std::unique_ptr<FileSystem>> make_object_file_system(const std::string& location, const S3Options& options,
                                                            Access access) {
  SW_ASSIGN(s3::ObjectLocation parsed, s3::parse_object_location(location));
  SW_ASSIGN(auto client, s3::ObjectClient::make(parsed.bucket, {.store = options}));
  return std::make_unique<s3::ObjectFileSystem>(
      std::move(client), parsed.key, access == Access::kRead ? s3::ListingCache::kOn : s3::ListingCache::kOff);
}

Result<std::unique_ptr<FileSystem>> make_file_system_at(const std::string& location, Access access,
                                                        const S3Options& options) {
  if (is_object_location(location)) return make_object_file_system(location, options, access);
  return make_posix_file_system();
}

}  // namespace slackwater
