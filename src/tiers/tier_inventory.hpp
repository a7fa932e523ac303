// TierInventory: what a lower tier holds before a run writes to it, and which of that the run adopts. A tier may have
// been out of reach while other attempts ran on tier 0, so its own newest attempt does not say everything.
// Plain values and functions without state. Thread rule: any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "os/file_system.hpp"
#include "tiers/tier_overlay.hpp"
#include "version/attempt.hpp"
#include "version/names.hpp"

namespace slackwater {

struct TierInventory {
  std::uint32_t newest_attempt = 0;    // by attempt files and version directories; 0: nothing is there
  std::optional<Attempt> attempt;      // the newest, if its file can be read
  std::vector<VersionName> adoptable;  // live there, or would be if they could be read
  std::vector<SetAside> set_aside;
};

// A tier that does not exist yet is empty.
[[nodiscard]] Result<TierInventory> take_inventory(FileSystem& fs, const std::string& root);

struct Adoption {
  std::vector<VersionName> adopted;
  // Of another branch (docs/decisions/0021-two-branches.md), or nobody knows whether a rollback left them behind. So
  // they are kept.
  std::vector<SetAside> set_aside;
};

// What a run adopts of a tier that it reaches now. `tier_0` is the root of tier 0, where the files of the attempts
// since the inventory's are read: a version stays live only if each of them continued from its step or a later one.
// `own_attempt` is the number of this run's attempt; 0: not claimed yet. `continued` is the step that this run
// restored; none: it restored nothing, and adopts everything.
// If tier 0 has not gone on from the inventory's attempt, another run has used the tier, and what it saved there is set
// aside.
[[nodiscard]] Adoption adopt_from(const TierInventory& inventory, FileSystem& fs, const std::string& tier_0,
                                  std::uint32_t own_attempt, std::optional<std::uint64_t> continued);

// Adds what is not in the lists of an attempt yet.
void add_adopted(std::vector<VersionName>& adopted, std::vector<SetAside>& set_aside, const Adoption& adoption);

// The attempt as its file on this tier says it: with what only this tier has. A version of another branch may have the
// name of one that the run adopted. On this tier, the name then stands for that other version, which is set aside.
[[nodiscard]] Result<Attempt> attempt_on_tier(Attempt attempt, const TierInventory& inventory, const TierPlace& tier,
                                              const TierPlace& tier_0, std::optional<std::uint64_t> continued);

}  // namespace slackwater
