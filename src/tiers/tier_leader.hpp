// TierLeader: rank 0's work on one lower tier. The order of writes there (docs/durability.md):
//   attempt file, with the number that tier 0 claimed -> for each version: index, own data files, own records
//   -> [records of all ranks found] -> pin, if it is pinned on tier 0 -> manifest -> delete what retention allows
// As on tier 0, the attempt decides: a leader that finds a newer one stops.
// Owner, thread rule and lifetime: as TierWorker.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <utility>

#include "tiers/free_space_watch.hpp"
#include "tiers/tier_worker.hpp"
#include "version/retention.hpp"
#include "version/version_store.hpp"

namespace slackwater {

class TierLeader final : public TierWorker {
 public:
  explicit TierLeader(const TierWork& work);

  [[nodiscard]] Status begin_attempt(const Attempt& attempt, std::optional<std::uint64_t> continued) override;
  [[nodiscard]] Result<Outcome> advance(const std::stop_token& stop) override;
  [[nodiscard]] Status remove(const std::vector<VersionName>& versions) override;

 private:
  // The version on its way.
  struct Copy {
    Copy(VersionFiles source, const Tier& tier) : files(std::move(source)), copier(files, tier.fs(), tier.root()) {}
    const VersionFiles files;
    VersionCopier copier;
    std::atomic<std::uint64_t> sent_bytes{0};
    std::size_t missing = 0;  // ranks, when it was looked last
    TimePoint missing_since;  // that number of ranks
  };

  [[nodiscard]] Status open_store();
  [[nodiscard]] Status drop_finished();
  [[nodiscard]] Status begin_next();
  [[nodiscard]] Result<Outcome> continue_copy(const std::stop_token& stop);
  [[nodiscard]] Status publish(const VersionName& version);
  [[nodiscard]] Status clean_up(Need need);
  [[nodiscard]] Status copy_pins();
  [[nodiscard]] Status abandon_uploads();
  [[nodiscard]] Result<Outcome> await_others(const std::vector<std::uint32_t>& missing);
  void settle_failure(const Error& error);
  void end_copy();
  void watch_free_space(std::uint64_t present, std::uint64_t version_bytes);

  const TierWork work_;
  const RetentionPolicy policy_;
  FreeSpaceWatch space_{policy_.keep, 1};
  std::unique_ptr<VersionStore> store_;  // null until the tier could be reached
  std::uint32_t attempt_ = 0;            // claimed on this tier
  bool clean_due_ = false;
  std::unique_ptr<Copy> copy_;
};

}  // namespace slackwater
