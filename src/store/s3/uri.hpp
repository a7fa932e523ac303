// Locations such as s3://bucket/prefix, endpoints, and the percent-encoding that signatures prescribe.
// Pure functions; any thread.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "slackwater/error.hpp"

namespace slackwater::s3 {

inline constexpr std::string_view kScheme = "s3://";

struct ObjectLocation {
  std::string bucket;
  std::string key;  // without a slash at either end; empty: the bucket itself
};

// kInvalidArgument says what such a location looks like.
[[nodiscard]] Result<ObjectLocation> parse_object_location(std::string_view location);

struct Endpoint {
  bool tls = true;
  std::string host;  // with the port, if it is not the usual one
};

// "https://minio.example:9000"; without a scheme, https.
[[nodiscard]] Result<Endpoint> parse_endpoint(std::string_view text);

// Letters, digits and -._~ stay; everything else becomes %XX. For keys, the slash stays too.
[[nodiscard]] std::string encode_query(std::string_view text);
[[nodiscard]] std::string encode_key(std::string_view key);
// Undoes it; for names in answers. A % that no two hex digits follow stays as it is.
[[nodiscard]] std::string decode_percent(std::string_view text);

using Query = std::vector<std::pair<std::string, std::string>>;
// Encoded and in the order in which it is signed: "a=1&b=".
[[nodiscard]] std::string canonical_query(const Query& query);

}  // namespace slackwater::s3
