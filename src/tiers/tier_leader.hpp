// TierLeader: rank 0's work on one lower tier. The order of writes there (docs/durability.md):
//   attempt file, with the number that tier 0 claimed -> for each version: index, own data files, own records
//   -> [records of all ranks found, every file there] -> pin, if it is pinned on tier 0 -> manifest
//   -> on another thread: delete what retention allows (tier_cleaner.hpp)
// As on tier 0, the attempt decides: a leader that finds a newer one stops.
// Owner, thread rule and lifetime: as TierWorker.
#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tiers/free_space_watch.hpp"
#include "tiers/tier_cleaner.hpp"
#include "tiers/tier_inventory.hpp"
#include "tiers/tier_worker.hpp"
#include "version/version_store.hpp"

namespace slackwater {

class TierLeader final : public TierWorker {
 public:
  explicit TierLeader(const TierWork& work);

  [[nodiscard]] Result<TierInventory> inventory() override;
  [[nodiscard]] Status begin_attempt(const Attempt& attempt, std::optional<std::uint64_t> continued) override;
  [[nodiscard]] Result<Outcome> advance(const std::stop_token& stop) override;
  [[nodiscard]] Status remove(const std::vector<DeleteNote>& deleted) override;
  void stop() override;

 private:
  // The version on its way.
  struct Copy {
    Copy(VersionFiles source, const Tier& tier) : files(std::move(source)), copier(files, tier.fs(), tier.root()) {}
    const VersionFiles files;
    VersionCopier copier;
    std::atomic<std::uint64_t> sent_bytes{0};
    std::size_t missing = 0;  // ranks, when it was checked last
    TimePoint missing_since;  // that number of ranks
    int incomplete = 0;       // how often files were found missing although they had been copied
    bool begun = false;
  };

  [[nodiscard]] Status open_store();
  [[nodiscard]] Result<std::vector<DeleteNote>> pending() const;
  [[nodiscard]] Result<std::set<VersionName>> drop_finished();
  void tell_kept(const Attempt& claimed, const Attempt& followed, const TierInventory& inventory) const;
  [[nodiscard]] Result<bool> is_another_place(const std::vector<DeleteNote>& deleted);
  [[nodiscard]] Result<bool> is_namesake(const CatalogEntry& there) const;
  [[nodiscard]] Status begin_next();
  [[nodiscard]] Result<Outcome> continue_copy(const std::stop_token& stop);
  [[nodiscard]] Status begin_copy();
  [[nodiscard]] Result<bool> publish(const VersionName& version);
  [[nodiscard]] Result<Outcome> copy_again();
  [[nodiscard]] Result<Outcome> await_others(const std::vector<std::uint32_t>& missing);
  [[nodiscard]] Result<std::optional<std::string>> find_failure();
  void settle_failure(const Error& error);
  void skip(const std::string& why);
  void end_copy();
  void watch_free_space(std::uint64_t present, std::uint64_t version_bytes);

  const TierWork work_;
  const RetentionPolicy policy_;
  FreeSpaceWatch space_{policy_.keep, 1};
  std::unique_ptr<VersionStore> store_;  // null until the tier could be reached
  std::uint32_t attempt_ = 0;            // claimed on this tier
  TierCleaner cleaner_;
  std::unique_ptr<Copy> copy_;
  std::map<VersionName, int> source_errors_;  // how often tier 0 could not be read
  bool told_another_place_ = false;
};

}  // namespace slackwater
