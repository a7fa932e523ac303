// Retention: the one place that says what may ever be deleted from a tier, and why that is safe. Whoever deletes asks
// here first. docs/durability.md has the same rules as a list. Plain values and pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "slackwater/checkpoint.hpp"
#include "slackwater/options.hpp"
#include "version/catalog.hpp"
#include "version/delete_notes.hpp"
#include "version/names.hpp"

namespace slackwater {

struct RetentionPolicy {
  std::uint64_t keep = 2;        // how many of the newest stay; 0 keeps all
  std::uint64_t keep_every = 0;  // steps divisible by it stay too; 0: none
  KeepBest best = {};            // the best of the live versions stay too
};

// The live versions that may go. Never one of the newest, a pinned one, or one of the best.
[[nodiscard]] std::vector<VersionName> expired(const std::vector<VersionInfo>& live, const RetentionPolicy& policy);

// One version to be removed.
struct Removal {
  VersionName version;
  std::string why;        // for the log
  bool committed = true;  // if not, a pin made ahead of its commit is void
};

// A lower tier follows a delete(). The note allows it to remove that very version, and nothing else. `saved_by`: the
// run that saved the version of this name there; empty: it has no manifest, or a damaged one. Two runs that have not
// seen each other may use the same name (tiers/tier_branches.hpp).
[[nodiscard]] bool is_meant(const DeleteNote& note, const std::string& saved_by);

// The run that asks for leftovers.
struct Sweeper {
  std::uint32_t attempt = 0;             // claimed by this run; before that, the newest there is
  bool alone = true;                     // one rank: nobody else writes under this attempt
  std::uint64_t settled_below = 0;       // several ranks: no rank writes a step below this one any more (0: not known)
  bool committed = false;                // this attempt has committed a version
  std::set<VersionName> in_doubt = {};   // the last sync of the decision failed, or is under way
  std::set<VersionName> abandoned = {};  // an earlier removal failed
  // A lower tier. Others copy there too, such as `slackwater copy`, and an object store has no lock. So only these
  // undecided versions may go: copies that this run began, and those that it found when it started.
  std::optional<std::set<VersionName>> own_copies = {};
};

// What no restore will ever choose: undecided and aborted versions that nobody writes any more and, once this attempt
// has committed, committed ones that a rollback left behind. Never one that is live, pinned or set aside, and never one
// whose manifest cannot be read.
[[nodiscard]] std::vector<Removal> leftovers(const Catalog& catalog, const Sweeper& sweeper);

// What a run may delete if there is not even space to claim its attempt: versions that it adopts beyond the policy.
[[nodiscard]] std::vector<Removal> surplus(const Catalog& catalog, const std::vector<VersionName>& adopted,
                                           const RetentionPolicy& policy);

// What a run knows about its own attempt and about versions that are not settled yet. The commit thread writes it while
// it decides; a clean-up reads it to see what must not be deleted, or must not push others out. The VersionStore owns
// it, in a Guarded, and shares it with its VersionCleaner.
struct RunState {
  std::uint32_t attempt = 0;                 // claimed; 0: none yet
  bool alone = true;                         // one rank
  std::set<VersionName> doubtful = {};       // visible, but the last sync of the decision failed
  std::optional<VersionName> deciding = {};  // may be visible already, but is not reported yet
  std::set<VersionName> abandoned = {};      // an earlier removal failed
  // Still to be copied to a lower tier; on a lower tier: on their way here.
  std::set<VersionName> held = {};
  std::optional<std::set<VersionName>> own_copies = {};  // only on a lower tier; as in Sweeper
  // The newest attempt that this run knows to be its own or older. Before claim(), the newest one found by open().
  std::uint32_t newest_known = 0;

  void claim(const Attempt& claimed) {
    newest_known = attempt = claimed.number;
    alone = claimed.world == 1;
  }
  void add_own_copies(const std::set<VersionName>& versions) {
    if (!own_copies) own_copies.emplace();
    own_copies->insert(versions.begin(), versions.end());
  }
};
enum class Need : std::uint8_t {
  kRoutine,  // the usual clean-up after a commit
  kSpace,    // the disk is full
};

// Leftovers and, once this attempt has committed, live versions beyond the policy. kSpace does not wait for that
// commit, and also takes versions of this attempt that are in doubt: they were never reported as committed. In any
// case, the newest `keep` versions that were reported stay. None goes because a version in doubt takes its place.
// A held version stays, even if it is beyond the policy. With kSpace it goes if nothing else can: then it is not copied
// to the lower tier, but checkpoints go on.
[[nodiscard]] std::vector<Removal> removable(const Catalog& catalog, const RunState& run, const RetentionPolicy& policy,
                                             Need need);

}  // namespace slackwater
