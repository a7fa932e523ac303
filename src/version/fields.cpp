#include "version/fields.hpp"

#include <limits>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"

namespace slackwater {

std::unexpected<Error> corrupt(std::string message, const std::string& path) {
  return fail(ErrorKind::kCorrupt, std::move(message), path);
}

Result<std::uint32_t> json_u32(const Json& object, const char* key, const std::string& path) {
  SW_ASSIGN(const std::uint64_t value, json_u64(object, key, path));
  if (value > std::numeric_limits<std::uint32_t>::max())
    return corrupt(fmt::format("field '{}' is too large: {}", key, value), path);
  return static_cast<std::uint32_t>(value);
}

Result<std::int64_t> json_time(const Json& object, const char* key, const std::string& path) {
  SW_ASSIGN(const std::uint64_t value, json_u64(object, key, path));
  if (value > std::numeric_limits<std::int64_t>::max())
    return corrupt(fmt::format("field '{}' is too large: {}", key, value), path);
  return static_cast<std::int64_t>(value);
}

Result<Digest128> json_digest(const Json& object, const char* key, const std::string& path) {
  SW_ASSIGN(const std::string text, json_string(object, key, path));
  const std::optional<Digest128> digest = digest128_from_hex(text);
  if (!digest) return corrupt(fmt::format("field '{}' is not a digest of 32 hexadecimal digits", key), path);
  return *digest;
}

Result<std::vector<std::string>> json_strings(const Json& object, const char* key, const std::string& path) {
  SW_ASSIGN(const Json* array, json_array(object, key, path));
  std::vector<std::string> texts;
  for (const Json& entry : *array) {
    if (!entry.is_string()) return corrupt(fmt::format("field '{}' holds something that is not a string", key), path);
    texts.push_back(entry.get<std::string>());
  }
  return texts;
}

Result<std::vector<VersionName>> json_versions(const Json& object, const char* key, const std::string& path) {
  SW_ASSIGN(const std::vector<std::string> names, json_strings(object, key, path));
  std::vector<VersionName> versions;
  for (const std::string& name : names) {
    const auto version = parse_version_directory(name);
    if (!version) return corrupt(fmt::format("field '{}' holds '{}', which is not a version", key, name), path);
    versions.push_back(*version);
  }
  return versions;
}

Json version_names(const std::vector<VersionName>& versions) {
  Json names = Json::array();
  for (const VersionName& version : versions) names.push_back(version_directory(version));
  return names;
}

Error unknown_format(std::uint64_t format, std::uint32_t known, const char* what, const std::string& path) {
  return Error{ErrorKind::kUnsupported,
               fmt::format("the {} has format {}, this build of Slackwater reads format {}; use a newer build", what,
                           format, known),
               path};
}

Status check_format(const Json& object, std::uint32_t known, const char* what, const std::string& path) {
  SW_ASSIGN(const std::uint64_t format, json_u64(object, "format", path));
  if (format != known) return fail(unknown_format(format, known, what, path));
  return {};
}

}  // namespace slackwater
