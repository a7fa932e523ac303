// Where an object store is and who we are there: S3Options, completed from the environment and from the profile files
// that the AWS command line and SDKs use. Free functions; they read files and the environment, and change nothing.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "slackwater/error.hpp"
#include "slackwater/options.hpp"
#include "store/s3/signature.hpp"
#include "store/s3/uri.hpp"

namespace slackwater::s3 {

struct StoreAddress {
  Endpoint endpoint;
  std::string region;
  std::string bucket;
  bool path_style = false;  // the bucket is in the path, not in the host's name
  std::string ca_file;      // AWS_CA_BUNDLE; empty: what libcurl was built with

  [[nodiscard]] std::string host() const;
  [[nodiscard]] std::string path(std::string_view key) const;  // encoded
  [[nodiscard]] std::string url(std::string_view key, const Query& query) const;
};

// The environment, so that tests can have their own. nullopt: not set, or empty.
using Environment = std::function<std::optional<std::string>(const char* name)>;
[[nodiscard]] Environment process_environment();

[[nodiscard]] Result<StoreAddress> find_address(const S3Options& options, const std::string& bucket,
                                                const Environment& environment);

// First that has them: the profile that the options name; AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; the profile
// AWS_PROFILE, or "default". Read again whenever the store says that they have expired.
[[nodiscard]] Result<Credentials> find_credentials(const S3Options& options, const Environment& environment);

}  // namespace slackwater::s3
