// RestoreSource: where one restore() reads from. Without lower tiers that is tier 0. With them it is all tiers as one
// (tiers/tier_overlay.hpp): each file from the fastest tier that has it intact.
// Made by the Restorer for one call. Thread rule: one thread, the trainer's. Lifetime: EngineShared outlives it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/engine_shared.hpp"
#include "tiers/node_fetch.hpp"
#include "tiers/other_nodes_files.hpp"
#include "tiers/tier_overlay.hpp"
#include "tiers/tier_probes.hpp"
#include "tiers/version_repair.hpp"

namespace slackwater {

class RestoreSource {
 public:
  RestoreSource(EngineShared& shared, const std::vector<TierPlace>& lower_tiers, TierProbes& probes);

  // With node_local, before scan(): learns what the other nodes have. `call` counts the calls of restore().
  [[nodiscard]] Status exchange(std::uint64_t call);
  // With several ranks, before scan(): object stores are listed by rank 0 alone, which tells the others. Waits for it.
  void share_listings(std::uint64_t call);
  // The versions on all tiers that can be reached. Logs which cannot.
  [[nodiscard]] Result<Catalog> scan();
  // Those on tier 0 alone, for a restore from memory.
  [[nodiscard]] Result<Catalog> scan_tier_0();
  // Whether a lower tier that answers soon has a newer attempt than this: the run went on elsewhere.
  [[nodiscard]] bool newer_below(std::uint32_t attempt);
  // Whether the last scan saw tier 0.
  [[nodiscard]] bool reached_tier_0() const { return !overlay_ || !overlay_->left_out().contains(0); }
  // Why "there is no checkpoint" would be a guess: a tier cannot be reached.
  [[nodiscard]] std::optional<Error> unreachable_tier_error() const;

  [[nodiscard]] FileSystem& fs() { return overlay_ ? *overlay_ : *shared_.fs; }

  [[nodiscard]] bool fetches() const { return overlay_ && shared_.options.world > 1; }
  // Several ranks are about to read what these ranks saved of the version. What tier 0 lacks of it is brought there
  // once for all of them. Without lower tiers or with one rank it returns at once. A failure costs time, nothing more.
  void fetch(const VersionName& version, const std::vector<std::uint32_t>& saved_by,
             const std::function<void()>& on_progress);

  // Reading this version failed. True: one file comes from another tier now, or is whole on tier 0 again, so try the
  // same version again.
  [[nodiscard]] bool move_on(const VersionName& version, const Error& error, const std::function<void()>& on_progress);
  // The error once move_on() has returned false, with what was tried where.
  [[nodiscard]] Error explain(Error error) const;

  // With node_local: makes the directory of this node readable alone.
  void settle(const VersionName& version);
  // For what tier 0 lacks of the version that was restored, or has damaged. nullopt: there is only tier 0.
  [[nodiscard]] std::optional<RepairOrder> repair_order(const VersionName& version) const;

 private:
  [[nodiscard]] Result<Catalog> scan_reached();
  bool leave_out_unreachable(std::optional<std::chrono::milliseconds> timeout);  // true: one has not answered yet
  void make_overlay();
  void warn_once(const std::string& text);
  // The lower tiers that can be reached, without those where the name stands for another checkpoint.
  [[nodiscard]] std::vector<TierPlace> sources(const VersionName& version) const;
  [[nodiscard]] NodeFetch::Options fetch_options(const std::function<void()>& on_progress) const;
  [[nodiscard]] bool mend(const VersionName& version, const Error& error, const std::function<void()>& on_progress);

  EngineShared& shared_;
  const Log& log_ = shared_.log;
  const std::vector<TierPlace> lower_tiers_;
  TierProbes& probes_;
  OtherNodesFiles others_;  // what other nodes sent
  bool exchanged_ = false;
  std::optional<TierOverlay> overlay_;  // none: there is only tier 0
  std::set<std::string> mended_;        // files on tier 0 that were damaged, each tried once
  bool scanned_ = false;
  std::optional<Attempt> deciding_attempt_;  // it says what is live
  std::uint32_t newest_attempt_ = 0;         // on any tier
  std::set<std::string> told_;               // warnings
};

}  // namespace slackwater
