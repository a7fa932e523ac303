#include "store/s3/signature.hpp"

#include <algorithm>
#include <ctime>

#include <fmt/format.h>

#include "store/s3/hashes.hpp"

namespace slackwater::s3 {
namespace {

std::string timestamp(std::int64_t unix_seconds) {
  const std::time_t seconds = unix_seconds;
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  return fmt::format("{:04}{:02}{:02}T{:02}{:02}{:02}Z", parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday,
                     parts.tm_hour, parts.tm_min, parts.tm_sec);
}

// Without spaces at the ends, and with single ones within: the canonical form of a header's value.
std::string trimmed(std::string_view value) {
  std::string text;
  for (const char c : value) {
    const bool space = c == ' ' || c == '\t';
    if (space && (text.empty() || text.back() == ' ')) continue;
    text += space ? ' ' : c;
  }
  if (text.ends_with(' ')) text.pop_back();
  return text;
}

}  // namespace

Headers sign(const SignedRequest& request, const Credentials& credentials) {
  const std::string time = timestamp(request.unix_seconds);
  const std::string day = time.substr(0, 8);
  Headers headers = request.headers;
  headers.emplace_back("host", request.host);
  headers.emplace_back("x-amz-content-sha256", request.payload_hash);
  headers.emplace_back("x-amz-date", time);
  if (!credentials.session_token.empty()) headers.emplace_back("x-amz-security-token", credentials.session_token);
  std::ranges::sort(headers);

  // 1. The canonical request.
  std::string canonical_headers;
  std::string signed_names;
  for (const auto& [name, value] : headers) {
    canonical_headers += fmt::format("{}:{}\n", name, trimmed(value));
    if (!signed_names.empty()) signed_names += ';';
    signed_names += name;
  }
  const std::string canonical =
      fmt::format("{}\n{}\n{}\n{}\n{}\n{}", request.method, request.path, canonical_query(request.query),
                  canonical_headers, signed_names, request.payload_hash);

  // 2. What is signed: the request's hash, with the day, region and service that the key is derived from.
  const std::string scope = fmt::format("{}/{}/s3/aws4_request", day, request.region);
  const std::string to_sign = fmt::format("AWS4-HMAC-SHA256\n{}\n{}\n{}", time, scope, to_hex(sha256(canonical)));

  // 3. The key of that day, region and service, and the signature.
  const std::string first_key = "AWS4" + credentials.secret_key;
  Sha256 key = hmac_sha256(std::as_bytes(std::span(first_key)), day);
  for (const std::string_view step :
       {std::string_view(request.region), std::string_view("s3"), std::string_view("aws4_request")})
    key = hmac_sha256(key, step);
  const std::string signature = to_hex(hmac_sha256(key, to_sign));

  headers.emplace_back("authorization", fmt::format("AWS4-HMAC-SHA256 Credential={}/{}, SignedHeaders={}, Signature={}",
                                                    credentials.access_key, scope, signed_names, signature));
  return headers;
}

}  // namespace slackwater::s3
