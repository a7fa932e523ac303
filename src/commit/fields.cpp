#include "commit/fields.hpp"

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

Error unknown_format(std::uint64_t format, std::uint32_t known, const char* what, const std::string& path) {
  return Error{ErrorKind::kUnsupported,
               fmt::format("the {} has format {}, this build of Slackwater reads format {}; use a newer one", what,
                           format, known),
               path};
}

Status check_format(const Json& object, std::uint32_t known, const char* what, const std::string& path) {
  SW_ASSIGN(const std::uint64_t format, json_u64(object, "format", path));
  if (format != known) return fail(unknown_format(format, known, what, path));
  return {};
}

}  // namespace slackwater
