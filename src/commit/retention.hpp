// Retention: the one place that says what may ever be deleted from a tier, and why that is safe. Pure; whoever deletes asks
// here first. docs/durability.md has the same as a table.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "commit/catalog.hpp"
#include "commit/names.hpp"
#include "slackwater/checkpoint.hpp"
#include "slackwater/options.hpp"

namespace slackwater {

struct RetentionPolicy {
  std::uint64_t keep = 2;        // newest that stay; 0 keeps all
  std::uint64_t keep_every = 0;  // steps divisible by it stay too; 0: none
  KeepBest best = {};            // so do the best of all that are live
};

// Which of the live versions may go. Never the newest, never a pinned one, never one of the best.
[[nodiscard]] std::vector<VersionName> expired(const std::vector<VersionInfo>& live, const RetentionPolicy& policy);

// One version to be removed.
struct Removal {
  VersionName version;
  std::string why;  // for the log
  bool committed = true;  // else a pin that was to come true with its commit is void
};

// Who asks for leftovers.
struct Sweeper {
  std::uint32_t attempt = 0;             // that this run has claimed; before that, the newest there is
  bool alone = true;                     // one rank: nobody else writes below this attempt
  std::uint64_t settled_below = 0;       // several ranks: none of them writes below this step any more (0: not known)
  bool committed = false;                // this attempt has committed a version
  std::set<VersionName> in_doubt = {};   // the last sync of their decision failed, or is under way
  std::set<VersionName> abandoned = {};  // to be removed long since
};

// What no restore will ever choose: undecided and aborted versions that nobody writes any more, and, once this attempt has
// committed, those that a rollback left behind. Never a live version, never one that is pinned or set aside, never one whose
// manifest cannot be read.
[[nodiscard]] std::vector<Removal> leftovers(const Catalog& catalog, const Sweeper& sweeper);

// What a run that cannot even claim its attempt for lack of space may delete: versions it adopts beyond the policy.
[[nodiscard]] std::vector<Removal> surplus(const Catalog& catalog, const std::vector<VersionName>& adopted,
                                           const RetentionPolicy& policy);

// A run as its clean-up sees it.
struct Standing {
  std::uint32_t attempt = 0;                 // claimed
  bool alone = true;                         // one rank
  std::set<VersionName> doubtful = {};       // visible, but the last sync of their decision failed
  std::optional<VersionName> deciding = {};  // visible, perhaps, and not yet reported
  std::set<VersionName> abandoned = {};      // a removal of them has failed before
};
enum class Need : std::uint8_t { kOrder, kSpace };

// Leftovers; live versions beyond the policy, once this attempt has committed. With kSpace (the disk is full) that is not
// waited for, and versions of this attempt that are in doubt go too: they were never reported as committed. Whatever the need, the newest `keep` that
// were reported stay. None goes because one in doubt fills its place.
[[nodiscard]] std::vector<Removal> removable(const Catalog& catalog, const Standing& standing,
                                             const RetentionPolicy& policy, Need need);

}  // namespace slackwater
