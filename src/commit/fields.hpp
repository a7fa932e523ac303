// What record, manifest, attempt and index have in common: limits on their files, and fields that base/json.hpp does
// not know. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "base/digest.hpp"
#include "base/json.hpp"
#include "slackwater/error.hpp"

namespace slackwater {

// Readers refuse larger files before they allocate.
inline constexpr std::uint64_t kMaxRecordBytes = 256u << 20;  // digests of 16 TiB
inline constexpr std::uint64_t kMaxIndexBytes = 256u << 20;
inline constexpr std::uint64_t kMaxManifestBytes = 64u << 20;
inline constexpr std::uint64_t kMaxAttemptBytes = 64u << 20;

[[nodiscard]] std::unexpected<Error> corrupt(std::string message, const std::string& path);

[[nodiscard]] Result<std::uint32_t> json_u32(const Json& object, const char* key, const std::string& path);
// Unix milliseconds.
[[nodiscard]] Result<std::int64_t> json_time(const Json& object, const char* key, const std::string& path);
[[nodiscard]] Result<Digest128> json_digest(const Json& object, const char* key, const std::string& path);

// kUnsupported unless the field `format` is `known`. `what`: "manifest".
[[nodiscard]] Status check_format(const Json& object, std::uint32_t known, const char* what, const std::string& path);
[[nodiscard]] Error unknown_format(std::uint64_t format, std::uint32_t known, const char* what,
                                   const std::string& path);

}  // namespace slackwater
