// Fields: what record, manifest, attempt and index share: size limits, and readers for JSON fields that base/json.hpp
// does not have. `path` names the file in errors. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/digest.hpp"
#include "base/json.hpp"
#include "slackwater/error.hpp"
#include "version/names.hpp"

namespace slackwater {

// Readers refuse a larger file before they allocate memory for it.
inline constexpr std::uint64_t kMaxRecordBytes = 256u << 20;  // digests of 16 TiB
inline constexpr std::uint64_t kMaxIndexBytes = 256u << 20;
inline constexpr std::uint64_t kMaxManifestBytes = 64u << 20;
inline constexpr std::uint64_t kMaxAttemptBytes = 64u << 20;

[[nodiscard]] std::unexpected<Error> corrupt(std::string message, const std::string& path);

[[nodiscard]] Result<std::uint32_t> json_u32(const Json& object, const char* key, const std::string& path);
[[nodiscard]] Result<std::int64_t> json_time(const Json& object, const char* key, const std::string& path);  // Unix ms
[[nodiscard]] Result<Digest128> json_digest(const Json& object, const char* key, const std::string& path);
[[nodiscard]] Result<std::vector<std::string>> json_strings(const Json& object, const char* key,
                                                            const std::string& path);
// An array of version directories, as version_names() makes it.
[[nodiscard]] Result<std::vector<VersionName>> json_versions(const Json& object, const char* key,
                                                             const std::string& path);
[[nodiscard]] Json version_names(const std::vector<VersionName>& versions);

// kUnsupported unless the field `format` is `known`. `what` names the kind of file: "manifest".
[[nodiscard]] Status check_format(const Json& object, std::uint32_t known, const char* what, const std::string& path);
[[nodiscard]] Error unknown_format(std::uint64_t format, std::uint32_t known, const char* what,
                                   const std::string& path);

}  // namespace slackwater
