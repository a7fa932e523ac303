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
#include "version/attempt.hpp"
#include "version/names.hpp"

namespace slackwater {

struct TierInventory {
  std::uint32_t newest_attempt = 0;    // by attempt files and version directories; 0: nothing is there
  std::vector<VersionName> adoptable;  // live there, or would be if they could be read
  std::vector<SetAside> set_aside;
};

// A tier that does not exist yet is empty.
[[nodiscard]] Result<TierInventory> take_inventory(FileSystem& fs, const std::string& root);

struct Adoption {
  std::vector<VersionName> adopted;
  std::vector<SetAside> set_aside;  // nobody knows whether a rollback left them behind, so they are kept
};

// What a run adopts of a tier that it reaches now. `tier_0` is the root of tier 0, where the files of the attempts
// since the inventory's are read: a version stays live only if each of them continued from its step or a later one.
// `own_attempt` is the number of this run's attempt; 0: not claimed yet. `continued` is the step that this run
// restored; none: it restored nothing, and adopts everything.
[[nodiscard]] Adoption adopt_from(const TierInventory& inventory, FileSystem& fs, const std::string& tier_0,
                                  std::uint32_t own_attempt, std::optional<std::uint64_t> continued);

// Adds what is not in the lists of an attempt yet.
void add_adopted(std::vector<VersionName>& adopted, std::vector<SetAside>& set_aside, const Adoption& adoption);

}  // namespace slackwater
