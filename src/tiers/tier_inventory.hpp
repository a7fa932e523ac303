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
#include "version/catalog.hpp"
#include "version/delete_notes.hpp"
#include "version/names.hpp"

namespace slackwater {

struct TierInventory {
  std::uint32_t newest_attempt = 0;    // by attempt files and version directories; 0: nothing is there
  std::optional<Attempt> attempt;      // the newest, if its file can be read
  std::vector<VersionName> adoptable;  // live there, or would be if they could be read
  std::vector<SetAside> set_aside;
  std::set<VersionName> deleted = {};  // of the adoptable ones, by the user: they are never set aside
};

// A tier that does not exist yet is empty. `notes`: what the user has deleted and this tier still has to delete.
[[nodiscard]] Result<TierInventory> take_inventory(FileSystem& fs, const std::string& root,
                                                   const std::vector<DeleteNote>& notes = {});

// What a run goes on from.
struct Continued {
  std::optional<std::uint64_t> step = {};     // that it restored; none: it restored nothing, and adopts everything
  std::vector<VersionName> left_behind = {};  // that its restore saw, and that the user went back behind
};

struct Adoption {
  std::vector<VersionName> adopted;
  // Of another branch (docs/decisions/0021-two-branches.md), or nobody has chosen to leave them behind. So they are
  // kept.
  std::vector<SetAside> set_aside;
};

// The attempts on tier 0 since this one, oldest first, without the run's own. nullopt: its file cannot be read, and the
// list ends.
[[nodiscard]] std::vector<std::optional<Attempt>> attempts_since(FileSystem& fs, const std::string& tier_0,
                                                                 std::uint32_t attempt, std::uint32_t own_attempt);
// Whether one of them says that the user went back behind this version.
[[nodiscard]] bool is_left_behind(const VersionName& version, const std::vector<std::optional<Attempt>>& attempts);

// What a run adopts of a tier that it reaches now. `tier_0` is the root of tier 0, where the files of the attempts
// since the inventory's are read: a version stays live only if each of them continued from its step or a later one. It
// counts as rolled back only if one of them has seen it. `own_attempt` is the number of this run's attempt; 0: not
// claimed yet.
// If tier 0 has not gone on from the inventory's attempt, another run has used the tier, and what it saved there is set
// aside.
[[nodiscard]] Adoption adopt_from(const TierInventory& inventory, FileSystem& fs, const std::string& tier_0,
                                  std::uint32_t own_attempt, const Continued& continued);

// What a run adopts of tier 0 if its restore could not reach it. `seen`: what the restore saw on the other tiers.
// `there`: what tier 0 turns out to have, at `tier_0`. Takes out of `adopted` what stands for another version there.
[[nodiscard]] Adoption adopt_from_tier_0(const Catalog& there, FileSystem& fs, const std::string& tier_0,
                                         const Catalog& seen, const Continued& continued,
                                         std::vector<VersionName>& adopted);

// Adds what is not in the lists of an attempt yet.
void add_adopted(std::vector<VersionName>& adopted, std::vector<SetAside>& set_aside, const Adoption& adoption);

// The attempt as its file on this tier says it: with what only this tier has. A version of another branch may have the
// name of one that the run adopted. On this tier, the name then stands for that other version, which is set aside.
// `continued`: the step that the run restored.
[[nodiscard]] Result<Attempt> attempt_on_tier(Attempt attempt, const TierInventory& inventory, const TierPlace& tier,
                                              const TierPlace& tier_0, std::optional<std::uint64_t> continued);

// For the user: "steps 3, 9 on s3://b/run are set aside and kept: restore(step=...) takes one of them, slackwater rm
// removes it".
[[nodiscard]] std::string sentence_on_kept(const std::set<std::uint64_t>& steps, const std::string& place);
// The same for each reason among these, with the reason.
[[nodiscard]] std::vector<std::string> sentences_on_kept(const std::vector<SetAside>& versions,
                                                         const std::string& place);

}  // namespace slackwater
