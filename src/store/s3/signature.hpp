// AWS Signature Version 4, as S3 wants it: the path is encoded once, and the hash of the body is a header.
// tests/python/test_s3_signatures.py compares it with botocore. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "store/s3/uri.hpp"

namespace slackwater::s3 {

struct Credentials {
  std::string access_key;
  std::string secret_key;
  std::string session_token;  // empty: none

  friend bool operator==(const Credentials&, const Credentials&) = default;
};

using Headers = std::vector<std::pair<std::string, std::string>>;  // names in lower case

inline constexpr std::string_view kUnsignedPayload = "UNSIGNED-PAYLOAD";

struct SignedRequest {
  std::string method;
  std::string host;
  std::string path;  // encoded, with the slash at its front
  Query query;
  Headers headers;           // all of them are signed
  std::string payload_hash;  // hex of the body's SHA-256, or kUnsignedPayload
  std::string region;
  std::int64_t unix_seconds = 0;
};

// The headers to send: the request's own, and host, x-amz-date, x-amz-content-sha256, x-amz-security-token (if there is
// one) and authorization.
[[nodiscard]] Headers sign(const SignedRequest& request, const Credentials& credentials);

}  // namespace slackwater::s3
