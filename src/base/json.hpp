// JSON from files nobody vouches for: bounded depth, no duplicate keys, no exceptions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "slackwater/error.hpp"

namespace slackwater {

using Json = nlohmann::json;

// A value costs up to fifty times its text in memory: no more of them than this. A manifest of 500,000 ranks has half
// as many.
inline constexpr std::size_t kMaxJsonValues = 4'000'000;

// kCorrupt with what and where (`path` only names it).
[[nodiscard]] Result<Json> parse_json(std::string_view text, const std::string& path, int max_depth = 32);

// Typed access: kCorrupt "manifest: field 'step' is missing or not a whole number".
[[nodiscard]] Result<std::uint64_t> json_u64(const Json& object, const char* key, const std::string& path);
[[nodiscard]] Result<std::string> json_string(const Json& object, const char* key, const std::string& path);
[[nodiscard]] Result<const Json*> json_array(const Json& object, const char* key, const std::string& path);
[[nodiscard]] Result<const Json*> json_object(const Json& object, const char* key, const std::string& path);

// Sealed JSON: an object whose last member is its own digest, over the exact bytes before it:
//   {...,"digest":"<32 hex of XXH3-128 of everything before ,"digest">"}\n
// A reader checks the bytes first and parses them afterwards. The object has a member at least, and none named "digest".
[[nodiscard]] std::string seal_json(const Json& object);
[[nodiscard]] Result<Json> open_sealed_json(std::string_view text, const std::string& path);

// The same for text written and read without a Json in memory. `body`: the object without its closing brace, at least one member.
[[nodiscard]] std::string seal_json_text(std::string body);
// Checks the digest only. The body, without the closing brace: a view into `text`.
[[nodiscard]] Result<std::string_view> open_sealed_text(std::string_view text, const std::string& path);

}  // namespace slackwater
