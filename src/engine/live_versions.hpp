// LiveVersions: which versions are live, under which attempt this run saves, and what its next attempt starts from. It
// keeps the list in memory: with thousands of versions, listing the directory takes longer than a commit. Only rank 0
// keeps the list up to date, because it alone commits and deletes.
// Thread rule: one thread at a time (Guarded, in EngineShared).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "slackwater/checkpoint.hpp"
#include "tiers/tier_inventory.hpp"
#include "version/attempt.hpp"
#include "version/catalog.hpp"
#include "version/manifest.hpp"
#include "version/retention.hpp"

namespace slackwater {

class LiveVersions {
 public:
  // `held` says which versions retention leaves alone for now. It is called with this object's lock held.
  LiveVersions(
      const Catalog& at_open, const RetentionPolicy& policy,
      std::function<std::set<VersionName>()> held = [] { return std::set<VersionName>(); });

  [[nodiscard]] const std::vector<VersionInfo>& list() const { return live_versions_; }  // oldest first
  // Among the live versions, and those that would be live if their manifest could be read.
  [[nodiscard]] std::optional<std::uint64_t> newest_step() const;

  // What the next attempt starts from.
  struct Start {
    std::vector<VersionName> adopted;
    std::vector<SetAside> set_aside;
    std::uint64_t epoch = 0;  // number of restores that chose a version: each is followed by a new attempt
    Continued continued = {};
    // The version that the run goes on from, and the run that saved it (empty: unknown). None: it restored nothing, or
    // the user has deleted it since.
    struct Restored {
      VersionName name;
      std::string run;
    };
    std::optional<Restored> restored = {};
    // What the restore saw, if it could not reach tier 0. Null: it could.
    std::shared_ptr<const Catalog> seen_without_tier_0 = {};
  };
  [[nodiscard]] Start start() const {
    return {.adopted = to_adopt_,
            .set_aside = set_aside_,
            .epoch = epoch_,
            .continued = continued_,
            .restored = restored_,
            .seen_without_tier_0 = seen_without_tier_0_};
  }
  // For a run that restored nothing: the versions that were there stay live, whatever happens to its first step.
  void adopt_all();
  // From here on this run continues that version. Later versions are replaced at the next commit, except those passed
  // over as damaged: they are set aside and kept.
  struct Seen {
    const Catalog& catalog;
    const std::vector<SetAside>& passed_over;
    bool step_asked_for = false;  // by the user: a rollback, if there are later versions
    bool tier_0 = true;           // it could be reached
  };
  void go_on_from(const VersionInfo& restored, const Seen& seen);
  // Rank 0 decides which versions stay live. Those that only other ranks have seen are live as well.
  void adopt_unseen(const VersionName& restored, const std::vector<VersionName>& seen);

  // None before the first save, and after a restore.
  [[nodiscard]] const std::optional<Attempt>& attempt() const { return attempt_; }
  void begin_attempt(const Attempt& attempt);

  // True: the cleaner has something to do.
  [[nodiscard]] bool add_committed(const Manifest& manifest, bool pinned);
  void note_pinned(const VersionName& version);
  void note_removed(const VersionName& version);
  void add_repaired(const VersionInfo& version);  // it is back on tier 0

  // There may be something to delete that retention does not know of. The next commit requests a run of the cleaner.
  void ask_to_sweep() { sweep_due_ = true; }
  // Around a run of the cleaner. False: nothing may be deleted yet.
  [[nodiscard]] bool begin_clean_up();
  void end_clean_up(std::optional<std::vector<VersionInfo>> left);  // the versions that are still live; none: unknown

 private:
  bool add(const VersionInfo& version);

  const RetentionPolicy policy_;
  const std::function<std::set<VersionName>()> held_;
  std::vector<VersionName> unreadable_;  // at open: would be live if their manifest could be read
  std::vector<VersionInfo> live_versions_;
  std::optional<Attempt> attempt_;
  std::vector<VersionName> to_adopt_;
  std::vector<SetAside> set_aside_;
  std::uint64_t epoch_ = 0;
  Continued continued_;
  std::optional<Start::Restored> restored_;
  std::shared_ptr<const Catalog> seen_without_tier_0_;
  bool sweep_due_ = false;
  struct CleanUp {
    std::uint32_t attempt = 0;  // when it began
    std::vector<VersionInfo> committed_meanwhile = {};
  };
  std::optional<CleanUp> clean_up_;  // while the cleaner runs
};

}  // namespace slackwater
