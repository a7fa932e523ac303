#include "tiers/tier_branches.hpp"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/result.hpp"
#include "tiers/tier_inventory.hpp"

namespace slackwater {
namespace {

using NewestAttempts = std::map<std::size_t, Attempt>;

bool same(const Attempt& one, const Attempt& other) { return one.number == other.number && one.run == other.run; }

// The run that had this attempt, as one tier knows it. nullopt: its file is gone, or cannot be read.
std::optional<std::string> run_on(const TierPlace& tier, std::uint32_t number) {
  auto attempt = read_attempt(*tier.fs, tier.root, number);
  if (!attempt) return std::nullopt;
  return std::move(attempt->run);
}

// What is known of two tiers whose newest attempts are not the same. `upper` has the higher number, or both are equal.
enum class Relation : std::uint8_t {
  kBehind,   // the upper one has gone on from the lower one
  kForked,   // two runs have the same number: neither has seen the other
  kUnknown,  // the file that would tell is gone
};
Relation relation(const TierPlace& upper_tier, const Attempt& upper, const Attempt& lower) {
  if (upper.number == lower.number) return Relation::kForked;
  const auto run = run_on(upper_tier, lower.number);
  if (!run) return Relation::kUnknown;
  return *run == lower.run ? Relation::kBehind : Relation::kForked;
}

bool forked(const TierOverlay& overlay, const NewestAttempts& newest, std::size_t one, std::size_t other) {
  if (newest.at(one).number < newest.at(other).number) std::swap(one, other);
  if (same(newest.at(one), newest.at(other))) return false;
  return relation(overlay.tiers()[one], newest.at(one), newest.at(other)) == Relation::kForked;
}

const CatalogEntry* find(const Catalog& catalog, const VersionName& version) {
  const auto found = std::ranges::find(catalog.entries, version, &CatalogEntry::name);
  return found == catalog.entries.end() ? nullptr : &*found;
}

// The highest number decides: its run has seen the others. After a fork numbers say nothing, so the branch decides that
// was begun later: it is the one that the user started last.
Result<std::size_t> decisive_tier(const TierOverlay& overlay, const NewestAttempts& newest) {
  std::size_t best = newest.begin()->first;
  for (const auto& [tier, attempt] : newest) {
    if (tier == best || same(attempt, newest.at(best))) continue;
    const bool later = attempt.created_unix_ms > newest.at(best).created_unix_ms;
    if (forked(overlay, newest, best, tier) ? later : attempt.number > newest.at(best).number) best = tier;
  }
  if (best == 0 || !newest.contains(0) || !forked(overlay, newest, best, 0)) return best;
  // This run writes to tier 0. A version that it goes on from must not have the name of another one there. If that were
  // so, the branch of tier 0 has come as far as the other, and decides.
  SW_ASSIGN(const Catalog below, scan_catalog(*overlay.tiers()[best].fs, overlay.tiers()[best].root));
  const std::vector<VersionInfo> live = below.live_versions();
  if (live.empty()) return best;
  SW_ASSIGN(const Catalog above, scan_catalog(*overlay.tiers()[0].fs, overlay.tiers()[0].root));
  const CatalogEntry* const there = find(above, name_of(live.back()));
  const CatalogEntry* const chosen = find(below, name_of(live.back()));
  return there != nullptr && !there->run.empty() && there->run != chosen->run ? 0 : best;
}

// Which of the tier's versions belong to another branch than the one that decides.
class Sorter {
 public:
  Sorter(const TierPlace& decides, const Attempt& attempt) : decides_(decides), attempt_(attempt) {}

  [[nodiscard]] bool is_foreign(const CatalogEntry& entry, bool forked) {
    const std::uint32_t number = entry.name.attempt;
    if (number > attempt_.number) return true;
    if (entry.run.empty()) return forked && number == attempt_.number;  // undecided, or it cannot be read
    const auto run = run_of(number);
    return run && *run != entry.run;
  }

 private:
  std::optional<std::string> run_of(std::uint32_t number) {
    if (number == attempt_.number) return attempt_.run;
    const auto known = runs_.find(number);
    if (known != runs_.end()) return known->second;
    return runs_.emplace(number, run_on(decides_, number)).first->second;
  }

  const TierPlace& decides_;
  const Attempt& attempt_;
  std::map<std::uint32_t, std::optional<std::string>> runs_;
};

Status hide(TierOverlay& overlay, const Attempt& deciding, Sorter& sorter, Branches::Other& other) {
  const TierPlace& tier = overlay.tiers()[other.tier];
  SW_ASSIGN(other.catalog, scan_catalog(*tier.fs, tier.root));
  for (const CatalogEntry& entry : other.catalog.entries) {
    if (!sorter.is_foreign(entry, other.forked)) continue;
    overlay.exclude(other.tier, version_directory(entry.name));
    other.hidden.push_back(entry.name);
  }
  SW_ASSIGN(const auto control, tier.fs->list(control_path(tier.root)));
  for (const DirectoryEntry& entry : control) {
    if (parse_attempt_file(entry.name).value_or(0) >= deciding.number)
      overlay.exclude(other.tier, fmt::format("{}/{}", kControlDirectory, entry.name));
  }
  return {};
}

}  // namespace

Result<Branches> settle_branches(TierOverlay& overlay, const NewestAttempts& newest) {
  Branches branches;
  if (newest.empty()) return branches;
  SW_ASSIGN(branches.decides, decisive_tier(overlay, newest));
  const TierPlace& decides = overlay.tiers()[branches.decides];
  const Attempt& deciding = newest.at(branches.decides);
  branches.deciding_attempt = deciding.number;
  Sorter sorter(decides, deciding);
  for (const auto& [tier, attempt] : newest) {
    if (same(attempt, deciding)) {
      // Its copy of the attempt file speaks of what is on this tier. A name that it sets aside stands for another
      // version here (attempt_on_tier()).
      for (const SetAside& aside : attempt.set_aside) {
        if (std::ranges::binary_search(deciding.adopted, aside.version))
          overlay.exclude(tier, version_directory(aside.version));
      }
      continue;
    }
    const bool higher = attempt.number > deciding.number;
    const Relation known = higher ? Relation::kForked : relation(decides, deciding, attempt);
    // A lower tier that was out of reach for a while. keep_unseen() knows what of it is live.
    if (known == Relation::kBehind && tier != 0) continue;
    // Tier 0 always has the attempts of its own runs. So the one that decides was claimed without it, and did not see
    // what is only here.
    Branches::Other other{
        .tier = tier, .attempt = attempt, .forked = known == Relation::kForked, .catalog = {}, .hidden = {}};
    if (Status hidden = hide(overlay, deciding, sorter, other); !hidden) {
      overlay.leave_out(tier, std::move(hidden).error());
      continue;
    }
    branches.others.push_back(std::move(other));
  }
  return branches;
}

namespace {

// What the user is told about one branch that was set aside. Empty: there is nothing to tell.
struct Told {
  std::set<std::uint64_t> kept;   // steps
  std::set<std::uint64_t> twice;  // with the name of another checkpoint

  static std::string listed(const std::set<std::uint64_t>& steps) {
    return fmt::format("{} {}", steps.size() == 1 ? "step" : "steps", fmt::join(steps, ", "));
  }
  [[nodiscard]] std::string sentence(const std::string& decides, std::uint32_t attempt, const std::string& root) const {
    std::string text =
        fmt::format("two runs went on separately, and this run continues the one on {} (attempt {})", decides, attempt);
    if (!kept.empty()) text += "; " + sentence_on_kept(kept, root);
    if (!twice.empty())
      text += fmt::format("; {} on {} {} kept, but {} of {} on {}", listed(twice), root,
                          twice.size() == 1 ? "is" : "are", twice.size() == 1 ? "has the name" : "have the names",
                          twice.size() == 1 ? "another checkpoint" : "other checkpoints", decides);
    return text;
  }
};

}  // namespace

std::vector<std::string> unite(TierOverlay& overlay, const Branches& branches, Catalog& catalog) {
  std::vector<std::string> sentences;
  const std::string& decides = overlay.tiers()[branches.decides].root;
  for (const Branches::Other& other : branches.others) {
    const std::string& root = overlay.tiers()[other.tier].root;
    const std::string why =
        fmt::format("the run with attempt {} on {} saved it, and the run on {} did not go on from it",
                    other.attempt.number, root, decides);
    Told told;
    for (const CatalogEntry& entry : other.catalog.entries) {
      const auto merged = std::ranges::find(catalog.entries, entry.name, &CatalogEntry::name);
      const bool listed = merged != catalog.entries.end();
      const bool hidden = std::ranges::find(other.hidden, entry.name) != other.hidden.end();
      if (!hidden) {
        if (!listed || merged->state != VersionState::kReplaced || !entry.adoptable()) continue;
        merged->state = VersionState::kSetAside;
        merged->why = why;
        told.kept.insert(entry.name.step);
      } else if (!entry.adoptable() && entry.state != VersionState::kSetAside) {
        continue;  // its own run had left it behind
      } else if (!listed) {
        CatalogEntry aside = entry;
        aside.state = VersionState::kSetAside;
        aside.current = false;
        if (aside.why.empty()) aside.why = why;
        catalog.entries.push_back(std::move(aside));
        overlay.include(other.tier, version_directory(entry.name));
        told.kept.insert(entry.name.step);
      } else {
        // Two checkpoints with one name. On tier 0 it stands for the one that is there, so no run may adopt it.
        if (other.tier == 0) {
          merged->state = VersionState::kSetAside;
          merged->why = why;
        }
        told.twice.insert(entry.name.step);
      }
    }
    std::ranges::sort(catalog.entries, {}, &CatalogEntry::name);
    if (!told.kept.empty() || !told.twice.empty())
      sentences.push_back(told.sentence(decides, branches.deciding_attempt, root));
  }
  return sentences;
}

namespace {

std::vector<VersionName> replaced_in(const Catalog& catalog) {
  std::vector<VersionName> versions;
  for (const CatalogEntry& entry : catalog.entries)
    if (entry.state == VersionState::kReplaced) versions.push_back(entry.name);
  return versions;
}

// Only to what counts as replaced.
std::vector<std::string> settle_replaced(const Adoption& adoption, Catalog& catalog, const std::string& place) {
  std::vector<SetAside> kept;
  for (CatalogEntry& entry : catalog.entries) {
    if (entry.state != VersionState::kReplaced) continue;
    const auto aside = std::ranges::find(adoption.set_aside, entry.name, &SetAside::version);
    if (aside != adoption.set_aside.end()) {
      entry.state = VersionState::kSetAside;
      entry.why = aside->why;
      kept.push_back(*aside);
    } else if (std::ranges::find(adoption.adopted, entry.name) != adoption.adopted.end()) {
      entry.state = VersionState::kLive;
      entry.current = true;
    }
  }
  return sentences_on_kept(kept, place);
}

}  // namespace

std::vector<std::string> keep_unseen(const TierOverlay& overlay, const NewestAttempts& newest, const Branches& branches,
                                     Catalog& catalog) {
  std::vector<std::string> sentences;
  const auto keep = [&](const Adoption& adoption, const std::string& place) {
    for (std::string& sentence : settle_replaced(adoption, catalog, place)) sentences.push_back(std::move(sentence));
  };
  if (!newest.contains(branches.decides)) return sentences;
  const TierPlace& decides = overlay.tiers()[branches.decides];
  for (const auto& [tier, attempt] : newest) {
    const bool told = std::ranges::find(branches.others, tier, &Branches::Other::tier) != branches.others.end();
    const std::vector<VersionName> left = replaced_in(catalog);
    if (left.empty()) return sentences;  // as almost always
    if (tier == branches.decides || told) continue;
    TierInventory inventory{
        .newest_attempt = attempt.number, .attempt = attempt, .adoptable = {}, .set_aside = attempt.set_aside};
    for (const VersionName& version : left) {
      if (version.attempt == attempt.number || std::ranges::find(attempt.adopted, version) != attempt.adopted.end())
        inventory.adoptable.push_back(version);
    }
    if (!inventory.adoptable.empty() || !inventory.set_aside.empty())
      keep(adopt_from(inventory, *decides.fs, decides.root, 0, {}), overlay.tiers()[tier].root);
  }
  // What no tier's newest attempt knows of, such as versions of a node that was away.
  Adoption rest;
  std::map<std::uint32_t, std::vector<std::optional<Attempt>>> since;  // by attempt
  for (const VersionName& version : replaced_in(catalog)) {
    if (!since.contains(version.attempt))
      since.emplace(version.attempt, attempts_since(*decides.fs, decides.root, version.attempt, 0));
    if (!is_left_behind(version, since.at(version.attempt)))
      rest.set_aside.push_back({version, "no run that continued since then had seen it"});
  }
  keep(rest, "one of the tiers");
  return sentences;
}

}  // namespace slackwater
