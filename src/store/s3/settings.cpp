#include "store/s3/settings.hpp"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>

#include <fmt/format.h>

#include "base/result.hpp"

namespace slackwater::s3 {
namespace {

using Section = std::map<std::string, std::string>;
constexpr std::size_t kMaxProfileBytes = 1u << 20;

std::string_view without_spaces(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\r\n";
  const std::size_t begin = text.find_first_not_of(kSpaces);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpaces) - begin + 1);
}

// One section of a profile file: "[name]" or "[profile name]", then "key = value". Indented lines belong to a nested
// setting and are passed over. Empty if there is no such file or section.
Section read_section(const std::string& path, const std::string& name) {
  Section section;
  std::ifstream file(path);
  std::string line;
  bool inside = false;
  std::size_t read_bytes = 0;
  while (std::getline(file, line) && (read_bytes += line.size() + 1) <= kMaxProfileBytes) {
    const std::string_view text = without_spaces(line);
    if (text.empty() || text.starts_with('#') || text.starts_with(';')) continue;
    if (text.starts_with('[')) {
      std::string_view title =
          without_spaces(text.substr(1, text.find(']') == text.npos ? text.npos : text.find(']') - 1));
      if (title.starts_with("profile ")) title = without_spaces(title.substr(8));
      inside = title == name;
      continue;
    }
    const std::size_t equals = text.find('=');
    const bool nested = line.front() == ' ' || line.front() == '\t';
    if (!inside || nested || equals == std::string_view::npos) continue;
    section.insert_or_assign(std::string(without_spaces(text.substr(0, equals))),
                             std::string(without_spaces(text.substr(equals + 1))));
  }
  return section;
}

// A file that a variable names, or one in ~/.aws.
std::string profile_path(const Environment& environment, const char* variable, const char* name) {
  if (const auto named = environment(variable)) return *named;
  const auto home = environment("HOME");
  return home ? fmt::format("{}/.aws/{}", *home, name) : std::string();
}

std::string profile_name(const S3Options& options, const Environment& environment) {
  if (!options.profile.empty()) return options.profile;
  return environment("AWS_PROFILE").value_or("default");
}

// What the config file says; what the credentials file says comes before it.
Section read_profile(const S3Options& options, const Environment& environment) {
  const std::string name = profile_name(options, environment);
  Section section = read_section(profile_path(environment, "AWS_SHARED_CREDENTIALS_FILE", "credentials"), name);
  section.merge(read_section(profile_path(environment, "AWS_CONFIG_FILE", "config"), name));
  return section;
}

std::string value_of(const Section& section, const char* name) {
  const auto found = section.find(name);
  return found == section.end() ? std::string() : found->second;
}

bool is_address(std::string_view host) {  // of IP, or this machine: no bucket can stand before it
  const std::string_view name = host.substr(0, host.find(':'));
  return host.starts_with('[') || name == "localhost" ||
         name.find_first_not_of("0123456789.") == std::string_view::npos;
}

// What stands in a header must not end it.
bool is_header_text(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c > ' ' && c <= '~'; });
}

}  // namespace

Environment process_environment() {
  return [](const char* name) -> std::optional<std::string> {
    const char* const value = std::getenv(name);
    if (value == nullptr || *value == '\0') return std::nullopt;
    return std::string(value);
  };
}

std::string StoreAddress::host() const { return path_style ? endpoint.host : bucket + "." + endpoint.host; }

std::string StoreAddress::path(std::string_view key) const {
  return path_style ? fmt::format("/{}{}{}", bucket, key.empty() ? "" : "/", encode_key(key)) : "/" + encode_key(key);
}

std::string StoreAddress::url(std::string_view key, const Query& query) const {
  return fmt::format("{}://{}{}{}{}", endpoint.tls ? "https" : "http", host(), path(key), query.empty() ? "" : "?",
                     canonical_query(query));
}

Result<StoreAddress> find_address(const S3Options& options, const std::string& bucket, const Environment& environment) {
  const Section profile = read_profile(options, environment);
  const auto first = [](std::initializer_list<std::string> values) {
    for (const std::string& value : values)
      if (!value.empty()) return value;
    return std::string();
  };
  const auto variable = [&](const char* name) { return environment(name).value_or(""); };

  StoreAddress address;
  address.bucket = bucket;
  address.region = first({options.region, variable("AWS_REGION"), variable("AWS_DEFAULT_REGION"),
                          value_of(profile, "region"), "us-east-1"});
  if (!is_header_text(address.region))
    return fail(ErrorKind::kInvalidArgument, fmt::format("'{}' is no region of an object store", address.region));
  const std::string named = first({options.endpoint, variable("AWS_ENDPOINT_URL_S3"), variable("AWS_ENDPOINT_URL"),
                                   value_of(profile, "endpoint_url")});
  SW_ASSIGN(address.endpoint,
            parse_endpoint(named.empty() ? fmt::format("https://s3.{}.amazonaws.com", address.region) : named));
  // A certificate of *.s3.amazonaws.com does not cover a bucket with a dot in its name.
  address.path_style = options.path_style || is_address(address.endpoint.host) ||
                       (address.endpoint.tls && bucket.find('.') != std::string::npos);
  address.ca_file = variable("AWS_CA_BUNDLE");
  return address;
}

Result<Credentials> find_credentials(const S3Options& options, const Environment& environment) {
  Credentials found;
  if (options.profile.empty()) {
    found = {environment("AWS_ACCESS_KEY_ID").value_or(""), environment("AWS_SECRET_ACCESS_KEY").value_or(""),
             environment("AWS_SESSION_TOKEN").value_or("")};
  }
  if (found.access_key.empty() || found.secret_key.empty()) {
    const Section profile = read_profile(options, environment);
    found = {value_of(profile, "aws_access_key_id"), value_of(profile, "aws_secret_access_key"),
             value_of(profile, "aws_session_token")};
  }
  if (found.access_key.empty() || found.secret_key.empty()) {
    return fail(ErrorKind::kPermission,
                fmt::format("there are no credentials for the object store: set AWS_ACCESS_KEY_ID and "
                            "AWS_SECRET_ACCESS_KEY, or write them for profile '{}' into {}",
                            profile_name(options, environment),
                            profile_path(environment, "AWS_SHARED_CREDENTIALS_FILE", "credentials")));
  }
  if (!is_header_text(found.access_key) || !is_header_text(found.session_token))
    return fail(ErrorKind::kPermission,
                "the credentials for the object store hold characters that no header can carry");
  return found;
}

}  // namespace slackwater::s3
