#include "store/s3/uri.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace slackwater::s3 {
namespace {

bool is_unreserved(char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.' ||
         c == '_' || c == '~';
}

std::string encode_all_but(std::string_view text, bool keep_slash) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  std::string encoded;
  encoded.reserve(text.size());
  for (const char c : text) {
    if (is_unreserved(c) || (keep_slash && c == '/')) {
      encoded += c;
      continue;
    }
    const auto byte = static_cast<unsigned char>(c);
    encoded += '%';
    encoded += kDigits[byte >> 4];
    encoded += kDigits[byte & 15];
  }
  return encoded;
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

std::unexpected<Error> bad_location(std::string_view location, std::string_view why) {
  return fail(ErrorKind::kInvalidArgument,
              fmt::format("'{}' is no location in an object store: {}; write s3://bucket/prefix", location, why));
}

// What a host name may hold, so that nothing else gets into a request.
bool is_host(std::string_view host) {
  return !host.empty() && std::ranges::all_of(host, [](char c) {
    return (is_unreserved(c) && c != '~' && c != '_') || c == ':' || c == '[' || c == ']';
  });
}

}  // namespace

Result<ObjectLocation> parse_object_location(std::string_view location) {
  std::string_view rest = location;
  if (!rest.starts_with(kScheme)) return bad_location(location, "it does not begin with s3://");
  rest.remove_prefix(kScheme.size());
  const std::size_t slash = std::min(rest.find('/'), rest.size());
  const std::string_view bucket = rest.substr(0, slash);
  constexpr std::size_t kMaxBucket = 63;
  const bool plain = std::ranges::all_of(bucket, [](char c) { return is_unreserved(c) && c != '~'; });
  if (bucket.empty()) return bad_location(location, "the bucket is missing");
  if (!plain || bucket.size() > kMaxBucket || bucket.front() == '.' || bucket.front() == '-')
    return bad_location(location, "a bucket has at most 63 letters, digits, dots and dashes");
  std::string key;
  for (const char c : rest.substr(slash))  // as on a disk, two slashes are one
    if (c != '/' || (!key.empty() && key.back() != '/')) key += c;
  if (key.ends_with('/')) key.pop_back();
  constexpr std::size_t kMaxKey = 900;  // of 1024, so that our own names fit behind it
  if (key.size() > kMaxKey) return bad_location(location, "the prefix is too long");
  return ObjectLocation{std::string(bucket), std::move(key)};
}

Result<Endpoint> parse_endpoint(std::string_view text) {
  Endpoint endpoint;
  std::string_view host = text;
  if (host.starts_with("http://")) {
    endpoint.tls = false;
    host.remove_prefix(7);
  } else if (host.starts_with("https://")) {
    host.remove_prefix(8);
  }
  while (host.ends_with('/')) host.remove_suffix(1);
  const std::string_view usual = endpoint.tls ? ":443" : ":80";
  if (host.ends_with(usual)) host.remove_suffix(usual.size());
  if (!is_host(host)) {
    return fail(ErrorKind::kInvalidArgument,
                fmt::format("'{}' is no endpoint of an object store; write https://host or https://host:port", text));
  }
  endpoint.host = std::string(host);
  return endpoint;
}

std::string encode_query(std::string_view text) { return encode_all_but(text, false); }
std::string encode_key(std::string_view key) { return encode_all_but(key, true); }

std::string decode_percent(std::string_view text) {
  std::string decoded;
  decoded.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    const int high = text[i] == '%' && i + 2 < text.size() ? hex_digit(text[i + 1]) : -1;
    const int low = high >= 0 ? hex_digit(text[i + 2]) : -1;
    if (low < 0) {
      decoded += text[i] == '+' ? ' ' : text[i];  // some servers encode names as forms do
      continue;
    }
    decoded += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return decoded;
}

std::string canonical_query(const Query& query) {
  std::vector<std::pair<std::string, std::string>> encoded;
  for (const auto& [name, value] : query) encoded.emplace_back(encode_query(name), encode_query(value));
  std::ranges::sort(encoded);
  std::string text;
  for (const auto& [name, value] : encoded) {
    if (!text.empty()) text += '&';
    text.append(name).append("=").append(value);
  }
  return text;
}

}  // namespace slackwater::s3
