// TierMember: the work of a rank other than 0 on one lower tier. It lists the tier to find versions that rank 0 has
// begun (they have an index and no manifest), and copies its own files of those. It never deletes and never publishes.
// Owner, thread rule and lifetime: as TierWorker.
#pragma once

#include <optional>
#include <set>

#include "tiers/tier_worker.hpp"

namespace slackwater {

class TierMember final : public TierWorker {
 public:
  explicit TierMember(const TierWork& work) : work_(work) {}

  [[nodiscard]] Status begin_attempt(const Attempt& attempt, std::optional<std::uint64_t> continued) override;
  [[nodiscard]] Result<Outcome> advance(const std::stop_token& stop) override;
  [[nodiscard]] Status remove(const std::vector<VersionName>& versions) override;

 private:
  enum class Seen : std::uint8_t { kNothing, kBegun, kPublished };

  [[nodiscard]] Result<Seen> look_at(const VersionName& version);
  [[nodiscard]] Status copy_own(const VersionName& version, const std::stop_token& stop);
  void drop_settled(const std::vector<VersionName>& there);

  const TierWork work_;
  std::uint32_t attempt_ = 0;
  std::set<VersionName> published_;  // on the tier
  std::set<VersionName> copied_;     // begun, and this rank's files are there
};

}  // namespace slackwater
