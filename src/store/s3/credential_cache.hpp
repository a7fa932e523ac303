// CredentialCache: the credentials that requests are signed with. When the store says that they have expired, they are
// read again, once for all requests that were signed with them.
// Owner: ObjectClient. Thread rule: thread-safe; renew() reads files.
#pragma once

#include <utility>

#include "base/guarded.hpp"
#include "store/s3/settings.hpp"

namespace slackwater::s3 {

class CredentialCache {
 public:
  CredentialCache(S3Options options, Environment environment, Credentials found)
      : options_(std::move(options)), environment_(std::move(environment)), current_(std::move(found)) {}

  [[nodiscard]] Credentials current() { return *current_.lock(); }
  // The store has refused these. True: there are others now, perhaps because another request has fetched them.
  [[nodiscard]] bool renew(const Credentials& refused);

 private:
  const S3Options options_;
  const Environment environment_;
  Guarded<Credentials> current_;
};

}  // namespace slackwater::s3
