// VersionRepair: copies back to the upper tier what it lacks of a version, or has damaged, from the tiers below. Only
// what is missing or differs is written, every byte is checked against its record, and the manifest comes last.
// Several ranks repair one version together: each copies the files of its share, and rank 0 publishes the manifest when
// all files are there. All of them write the same bytes, so a crash at any point does no harm: the next one continues.
// Owned by the RepairThread, for one version. Thread rule: one thread. Lifetime: the FileSystems outlive it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "tiers/tier_overlay.hpp"
#include "tiers/version_copier.hpp"
#include "tiers/version_files.hpp"
#include "version/attempt.hpp"
#include "version/names.hpp"

namespace slackwater {

struct RepairOrder {
  VersionName version;
  std::vector<TierPlace> sources;         // the tiers below, the fastest first
  std::vector<std::string> damaged = {};  // files on the upper tier, relative to the version's directory
  std::optional<Attempt> attempt = {};    // said that the version is live when it was restored
  std::uint32_t newest_attempt = 0;       // on any tier then
};

class VersionRepair {
 public:
  // `in_share`: whether this rank copies the files that a rank saved.
  VersionRepair(RepairOrder order, TierPlace target, std::function<bool(std::uint32_t rank)> in_share, Log log);

  [[nodiscard]] const RepairOrder& order() const { return order_; }

  // Copies the files of this rank's share that are missing, and the damaged ones. It reads the tiers below; what
  // follows does not. kAlreadyExists: the upper tier has another checkpoint of that name, which stays as it is.
  [[nodiscard]] Status copy(const CopyOptions& options);
  [[nodiscard]] std::uint64_t files_copied() const { return files_copied_; }

  // Whether the upper tier has no usable manifest of this version yet.
  [[nodiscard]] Result<bool> unpublished() const;
  // A rank whose files are not there yet. nullopt: all are there.
  [[nodiscard]] Result<std::optional<std::uint32_t>> missing_rank() const;
  // For one rank alone, while nobody deletes on the upper tier. False: files of other ranks are not there yet.
  [[nodiscard]] Result<bool> publish();

 private:
  [[nodiscard]] Status try_to_copy(const CopyOptions& options);
  [[nodiscard]] Status copy_damaged(const std::string& name, const CopyOptions& options);
  [[nodiscard]] Status copy_missing(const RecordReference& reference, const CopyOptions& options);

  const RepairOrder order_;
  const TierPlace target_;
  const std::function<bool(std::uint32_t)> in_share_;
  const Log log_;
  TierOverlay sources_;
  std::optional<VersionFiles> files_;  // as the tiers below have them; none: they do not have the version
  std::uint64_t files_copied_ = 0;
};

}  // namespace slackwater
