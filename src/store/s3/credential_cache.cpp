#include "store/s3/credential_cache.hpp"

namespace slackwater::s3 {

bool CredentialCache::renew(const Credentials& refused) {
  // Under the lock, so that many requests which are refused together read the files once.
  const auto current = current_.lock();
  if (*current != refused) return true;
  auto found = find_credentials(options_, environment_);
  if (!found) return false;
  *current = std::move(*found);
  return *current != refused;
}

}  // namespace slackwater::s3
