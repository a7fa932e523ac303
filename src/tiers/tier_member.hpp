// TierMember: the work of a rank other than 0 on one lower tier. It lists the tier to find versions that rank 0 has
// begun (they have an index and no manifest), and copies its own files of those. It never deletes and never publishes.
// If it cannot read its files on tier 0, it says so with a failure note in the version's directory on the tier, so that
// rank 0 goes on to the next version. The note goes with the version.
// Owner, thread rule and lifetime: as TierWorker.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tiers/tier_worker.hpp"

namespace slackwater {

class TierMember final : public TierWorker {
 public:
  explicit TierMember(const TierWork& work) : work_(work) {}

  [[nodiscard]] Result<TierInventory> inventory() override;
  [[nodiscard]] Status begin_attempt(const Attempt& attempt, std::optional<std::uint64_t> continued) override;
  [[nodiscard]] Result<Outcome> advance(const std::stop_token& stop) override;
  [[nodiscard]] Status remove(const std::vector<DeleteNote>& deleted) override;

 private:
  enum class Seen : std::uint8_t { kNothing, kBegun, kPublished };
  struct Found {
    Seen seen = Seen::kNothing;
    std::vector<DirectoryEntry> entries = {};
  };

  [[nodiscard]] Result<Found> check(const VersionName& version);
  [[nodiscard]] Result<bool> is_copied(const VersionName& version, const std::vector<DirectoryEntry>& entries);
  [[nodiscard]] Status copy_own(const VersionName& version, const std::stop_token& stop);
  [[nodiscard]] Status settle_failure(const VersionName& version, const Error& error);
  [[nodiscard]] Status write_note(const VersionName& version);
  [[nodiscard]] Status learn_adopted();
  [[nodiscard]] Status unlink_followed(const std::vector<VersionName>& there);
  void drop_settled(const std::vector<VersionName>& there);

  const TierWork work_;
  std::uint32_t attempt_ = 0;
  std::vector<VersionName> adopted_;                        // by the attempt, on tier 0 or on this tier
  bool adopted_is_known_ = false;                           // the tier's own file of the attempt has been read
  std::set<VersionName> published_;                         // on the tier
  std::map<VersionName, std::vector<std::string>> copied_;  // begun; this rank's records, which are there
  std::map<VersionName, int> source_errors_;                // how often tier 0 could not be read
  std::vector<DeleteNote> noted_;                           // on this node, and this tier has not followed yet
  std::map<VersionName, std::string> failed_;               // begun, this rank cannot copy its files, and why
};

}  // namespace slackwater
