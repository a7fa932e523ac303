// Reads JSON from untrusted files: bounded depth, no duplicate keys, no exceptions. Also writes and checks sealed JSON.
// Pure functions; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "slackwater/error.hpp"

namespace slackwater {

using Json = nlohmann::json;

// A parsed value takes up to fifty times the memory of its text, so their number is limited. A manifest of 500,000
// ranks has half as many.
inline constexpr std::size_t kMaxJsonValues = 4'000'000;

// kCorrupt says what is wrong and where. `path` is only used in that message.
[[nodiscard]] Result<Json> parse_json(std::string_view text, const std::string& path, int max_depth = 32);

// Typed access. kCorrupt reads like "field 'step' is missing or not a whole number: <path>".
[[nodiscard]] Result<std::uint64_t> json_u64(const Json& object, const char* key, const std::string& path);
[[nodiscard]] Result<std::string> json_string(const Json& object, const char* key, const std::string& path);
[[nodiscard]] Result<const Json*> json_array(const Json& object, const char* key, const std::string& path);
[[nodiscard]] Result<const Json*> json_object(const Json& object, const char* key, const std::string& path);

// Sealed JSON is an object whose last member is the digest of the exact bytes before it:
//   {...,"digest":"<32 hex digits: XXH3-128 of everything before ,"digest">"}\n
// A reader checks the bytes before it parses them. The object must have a member, and none named "digest".
[[nodiscard]] std::string seal_json(const Json& object);
[[nodiscard]] Result<Json> open_sealed_json(std::string_view text, const std::string& path);

// The same for text that is written and read without a Json in memory. `body` is the object without its closing brace
// and has at least one member.
[[nodiscard]] std::string seal_json_text(std::string body);
// Checks only the digest. Returns a view of the body in `text`, without the closing brace.
[[nodiscard]] Result<std::string_view> open_sealed_text(std::string_view text, const std::string& path);

}  // namespace slackwater
