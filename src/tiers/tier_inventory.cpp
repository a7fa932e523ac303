#include "tiers/tier_inventory.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/result.hpp"
#include "version/retention.hpp"

namespace slackwater {
namespace {

constexpr const char* kNotSeen = "a run continued from an earlier step without having seen it";

bool lists_version(const std::vector<VersionName>& versions, const VersionName& version) {
  return std::ranges::find(versions, version) != versions.end();
}

// Whether another run has used the tier, without this tier 0: its newest attempt is not among those
// that tier 0 has gone on from. A tier 0 without attempts is new, or was lost, and goes on from whatever there is.
bool of_another_branch(const TierInventory& inventory, FileSystem& fs, const std::string& tier_0,
                       std::uint32_t own_attempt) {
  if (!inventory.attempt) return false;
  const auto control = fs.list(control_path(tier_0));
  if (!control) return control.error().kind != ErrorKind::kNotFound;
  const bool used = std::ranges::any_of(*control, [&](const DirectoryEntry& entry) {
    const auto number = parse_attempt_file(entry.name);
    return number && *number != own_attempt;
  });
  if (!used) return false;
  const auto same = read_attempt(fs, tier_0, inventory.attempt->number);
  return !same || same->run != inventory.attempt->run;
}

// Whether both tiers have a checkpoint of this name, and not the same one.
Result<bool> differs(const VersionName& version, const TierPlace& tier, const TierPlace& tier_0) {
  const auto here = read_manifest(*tier.fs, tier.root, version);
  const auto above = read_manifest(*tier_0.fs, tier_0.root, version);
  for (const auto* manifest : {&here, &above}) {
    if (!*manifest && manifest->error().kind != ErrorKind::kNotFound && manifest->error().kind != ErrorKind::kCorrupt)
      return fail(manifest->error());
  }
  return here && above && here->run != above->run;
}

// Whether a version outlived an attempt that could not see it. A run adopts the version that it restored, so the newest
// one that it adopted says where it continued.
bool outlives(const VersionName& version, const Attempt& attempt) {
  return std::ranges::any_of(attempt.adopted, [&](const VersionName& adopted) { return adopted.step >= version.step; });
}

}  // namespace

std::vector<std::optional<Attempt>> attempts_since(FileSystem& fs, const std::string& tier_0, std::uint32_t attempt,
                                                   std::uint32_t own_attempt) {
  std::vector<std::optional<Attempt>> attempts;
  const auto newest = newest_attempt_number(fs, tier_0);
  if (!newest) return {std::nullopt};
  for (std::uint32_t number = attempt + 1; number <= *newest; ++number) {
    if (number == own_attempt) continue;  // `continued` says what this run continues
    auto next = read_attempt(fs, tier_0, number);
    attempts.push_back(next ? std::optional(std::move(*next)) : std::nullopt);
    if (!attempts.back()) break;  // one unknown is enough
  }
  return attempts;
}

bool is_left_behind(const VersionName& version, const std::vector<std::optional<Attempt>>& attempts) {
  return std::ranges::any_of(
      attempts, [&](const auto& attempt) { return attempt && lists_version(attempt->left_behind, version); });
}

Result<TierInventory> take_inventory(FileSystem& fs, const std::string& root, const std::vector<DeleteNote>& notes) {
  TierInventory inventory;
  const auto catalog = scan_catalog(fs, root);
  if (!catalog && catalog.error().kind == ErrorKind::kNotFound) return inventory;
  if (!catalog) return fail(catalog.error());
  SW_ASSIGN(inventory.newest_attempt, newest_attempt_number(fs, root));
  inventory.attempt = catalog->newest_attempt;
  for (const CatalogEntry& entry : catalog->entries) {
    inventory.newest_attempt = std::max(inventory.newest_attempt, entry.name.attempt);
    if (!entry.adoptable()) continue;
    inventory.adoptable.push_back(entry.name);
    for (const DeleteNote& note : notes)
      if (note.version == entry.name && is_meant(note, entry.run)) inventory.deleted.insert(entry.name);
  }
  inventory.set_aside = catalog->set_aside();
  return inventory;
}

Adoption adopt_from(const TierInventory& inventory, FileSystem& fs, const std::string& tier_0,
                    std::uint32_t own_attempt, const Continued& continued) {
  Adoption adoption{.adopted = {}, .set_aside = inventory.set_aside};
  if (of_another_branch(inventory, fs, tier_0, own_attempt)) {
    for (const VersionName& version : inventory.adoptable) {
      if (inventory.deleted.contains(version)) continue;
      adoption.set_aside.push_back(
          {version,
           fmt::format("another run saved it on a lower tier (attempt {}), and this run did not continue from it",
                       inventory.attempt->number)});
    }
    return adoption;
  }
  const auto attempts = attempts_since(fs, tier_0, inventory.newest_attempt, own_attempt);
  const bool unknown = std::ranges::any_of(attempts, [](const auto& attempt) { return !attempt; });
  for (const VersionName& version : inventory.adoptable) {
    if (lists_version(continued.left_behind, version) || is_left_behind(version, attempts)) continue;
    const bool passed =
        (continued.step && version.step > *continued.step) ||
        std::ranges::any_of(attempts, [&](const auto& attempt) { return attempt && !outlives(version, *attempt); });
    if ((passed || unknown) && inventory.deleted.contains(version)) continue;
    // Nobody asked for a rollback behind a version that was on no tier within reach.
    if (passed) {
      adoption.set_aside.push_back({version, kNotSeen});
    } else if (unknown) {
      adoption.set_aside.push_back(
          {version,
           "the tier was out of reach, and the attempts since then cannot be read on tier 0, so it is not "
           "known whether a rollback left this version behind"});
    } else {
      adoption.adopted.push_back(version);
    }
  }
  return adoption;
}

Adoption adopt_from_tier_0(const Catalog& there, FileSystem& fs, const std::string& tier_0, const Catalog& seen,
                           const Continued& continued, std::vector<VersionName>& adopted) {
  Adoption adoption{.adopted = {}, .set_aside = there.set_aside()};
  // Whether tier 0 knows the attempt by which the restore has chosen. If not, another run was here, or there.
  const auto& chosen_by = seen.newest_attempt;
  const auto same = chosen_by ? read_attempt(fs, tier_0, chosen_by->number)
                              : Result<Attempt>(fail(ErrorKind::kNotFound, "no attempt decided"));
  const bool in_line = same && same->run == chosen_by->run;
  for (const CatalogEntry& entry : there.entries) {
    const auto other = std::ranges::find(seen.entries, entry.name, &CatalogEntry::name);
    const bool is_seen = other != seen.entries.end();
    const bool differs = is_seen && !entry.run.empty() && !other->run.empty() && entry.run != other->run;
    // On tier 0 a name stands for what is there.
    if (differs) std::erase(adopted, entry.name);
    if (!entry.adoptable()) continue;
    const bool settled = lists_version(adopted, entry.name) || lists_version(continued.left_behind, entry.name);
    if (is_seen && !differs && settled) continue;
    // Those of later attempts may stand for a rollback that the restore does not know of.
    const bool live = in_line && !differs && entry.name.attempt <= chosen_by->number && continued.step &&
                      entry.name.step <= *continued.step;
    if (live) {
      adoption.adopted.push_back(entry.name);
    } else {
      adoption.set_aside.push_back({entry.name, "tier 0 could not be reached when this run was restored"});
    }
  }
  return adoption;
}

void add_adopted(std::vector<VersionName>& adopted, std::vector<SetAside>& set_aside, const Adoption& adoption) {
  const auto is_aside = [&](const VersionName& version) {
    return std::ranges::find(set_aside, version, &SetAside::version) != set_aside.end();
  };
  for (const VersionName& version : adoption.adopted)
    if (!is_aside(version) && !lists_version(adopted, version)) adopted.push_back(version);
  std::ranges::sort(adopted);
  for (const SetAside& aside : adoption.set_aside)
    if (!is_aside(aside.version) && !lists_version(adopted, aside.version)) set_aside.push_back(aside);
}

Result<Attempt> attempt_on_tier(Attempt attempt, const TierInventory& inventory, const TierPlace& tier,
                                const TierPlace& tier_0, std::optional<std::uint64_t> continued) {
  const Adoption adoption = adopt_from(inventory, *tier_0.fs, tier_0.root, attempt.number,
                                       {.step = continued, .left_behind = attempt.left_behind});
  for (const SetAside& aside : adoption.set_aside) {
    if (std::ranges::find(attempt.adopted, aside.version) == attempt.adopted.end()) continue;
    SW_ASSIGN(const bool other, differs(aside.version, tier, tier_0));
    if (!other) continue;
    std::erase(attempt.adopted, aside.version);
    attempt.set_aside.push_back(aside);
  }
  add_adopted(attempt.adopted, attempt.set_aside, adoption);
  return attempt;
}

std::string sentence_on_kept(const std::set<std::uint64_t>& steps, const std::string& place) {
  return fmt::format("{} {} on {} {} set aside and kept: restore(step=...) takes one of them, slackwater rm removes it",
                     steps.size() == 1 ? "step" : "steps", fmt::join(steps, ", "), place,
                     steps.size() == 1 ? "is" : "are");
}

std::vector<std::string> sentences_on_kept(const std::vector<SetAside>& versions, const std::string& place) {
  std::map<std::string, std::set<std::uint64_t>> by_reason;
  for (const SetAside& aside : versions) by_reason[aside.why].insert(aside.version.step);
  std::vector<std::string> sentences;
  for (const auto& [why, steps] : by_reason) sentences.push_back(sentence_on_kept(steps, place) + " (" + why + ")");
  return sentences;
}

}  // namespace slackwater
