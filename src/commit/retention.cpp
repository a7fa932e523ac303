#include <cstddef>

#include "commit/version_store.hpp"

namespace slackwater {

std::vector<VersionName> expired(const std::vector<VersionInfo>& counting, const RetentionPolicy& policy) {
  std::vector<VersionName> names;
  if (policy.keep == 0 || counting.size() <= policy.keep) return names;
  const std::size_t older = counting.size() - static_cast<std::size_t>(policy.keep);
  for (std::size_t i = 0; i < older; ++i) {
    const VersionInfo& version = counting[i];
    const bool kept_by_step = policy.keep_every != 0 && version.step % policy.keep_every == 0;
    if (!kept_by_step && !version.pinned) names.push_back({version.step, version.attempt});
  }
  return names;
}

}  // namespace slackwater
