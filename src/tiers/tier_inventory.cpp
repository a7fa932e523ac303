#include "tiers/tier_inventory.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "version/catalog.hpp"

namespace slackwater {
namespace {

// The attempts of tier 0 that that tier has not seen, oldest first. nullopt: its file cannot be read.
std::vector<std::optional<Attempt>> unseen_attempts(FileSystem& fs, const std::string& tier_0, std::uint32_t seen,
                                                    std::uint32_t own_attempt) {
  std::vector<std::optional<Attempt>> attempts;
  const auto newest = newest_attempt_number(fs, tier_0);
  if (!newest) return {std::nullopt};
  for (std::uint32_t number = seen + 1; number <= *newest; ++number) {
    if (number == own_attempt) continue;  // `continued` says what this run continues
    auto attempt = read_attempt(fs, tier_0, number);
    attempts.push_back(attempt ? std::optional(std::move(*attempt)) : std::nullopt);
    if (!attempts.back()) break;  // one unknown is enough
  }
  return attempts;
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

Result<TierInventory> take_inventory(FileSystem& fs, const std::string& root) {
  TierInventory inventory;
  const auto catalog = scan_catalog(fs, root);
  if (!catalog && catalog.error().kind == ErrorKind::kNotFound) return inventory;
  if (!catalog) return fail(catalog.error());
  SW_ASSIGN(inventory.newest_attempt, newest_attempt_number(fs, root));
  inventory.attempt = catalog->newest_attempt;
  for (const CatalogEntry& entry : catalog->entries) {
    inventory.newest_attempt = std::max(inventory.newest_attempt, entry.name.attempt);
    if (entry.adoptable()) inventory.adoptable.push_back(entry.name);
  }
  inventory.set_aside = catalog->set_aside();
  return inventory;
}

Adoption adopt_from(const TierInventory& inventory, FileSystem& fs, const std::string& tier_0,
                    std::uint32_t own_attempt, std::optional<std::uint64_t> continued) {
  Adoption adoption{.adopted = {}, .set_aside = inventory.set_aside};
  if (of_another_branch(inventory, fs, tier_0, own_attempt)) {
    for (const VersionName& version : inventory.adoptable) {
      adoption.set_aside.push_back(
          {version, fmt::format("another run saved it on a lower tier (attempt {}), and this run did not go on from it",
                                inventory.attempt->number)});
    }
    return adoption;
  }
  const auto attempts = unseen_attempts(fs, tier_0, inventory.newest_attempt, own_attempt);
  const bool unknown = std::ranges::any_of(attempts, [](const auto& attempt) { return !attempt; });
  for (const VersionName& version : inventory.adoptable) {
    if (continued && version.step > *continued) continue;  // this run rolled back to an earlier step
    const bool replaced =
        std::ranges::any_of(attempts, [&](const auto& attempt) { return attempt && !outlives(version, *attempt); });
    if (unknown) {
      adoption.set_aside.push_back(
          {version,
           "the tier was out of reach, and the attempts since then cannot be read on tier 0, so it is not "
           "known whether a rollback left this version behind"});
    } else if (!replaced) {
      adoption.adopted.push_back(version);
    }
  }
  return adoption;
}

void add_adopted(std::vector<VersionName>& adopted, std::vector<SetAside>& set_aside, const Adoption& adoption) {
  const auto is_aside = [&](const VersionName& version) {
    return std::ranges::find(set_aside, version, &SetAside::version) != set_aside.end();
  };
  const auto is_adopted = [&](const VersionName& version) {
    return std::ranges::find(adopted, version) != adopted.end();
  };
  for (const VersionName& version : adoption.adopted)
    if (!is_aside(version) && !is_adopted(version)) adopted.push_back(version);
  std::ranges::sort(adopted);
  for (const SetAside& aside : adoption.set_aside)
    if (!is_aside(aside.version) && !is_adopted(aside.version)) set_aside.push_back(aside);
}

Result<Attempt> attempt_on_tier(Attempt attempt, const TierInventory& inventory, const TierPlace& tier,
                                const TierPlace& tier_0, std::optional<std::uint64_t> continued) {
  const Adoption adoption = adopt_from(inventory, *tier_0.fs, tier_0.root, attempt.number, continued);
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

}  // namespace slackwater
