#include "tiers/tier_scan.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/result.hpp"
#include "tiers/other_nodes_files.hpp"
#include "tiers/tier_branches.hpp"
#include "version/delete_notes.hpp"
#include "version/retention.hpp"

namespace slackwater {
namespace {

// By tier. A damaged file comes from another tier, if one has it.
std::map<std::size_t, Attempt> newest_attempts(TierOverlay& overlay, std::uint32_t& highest) {
  std::map<std::size_t, Attempt> newest;
  const std::vector<TierPlace>& tiers = overlay.tiers();
  for (std::size_t tier = 0; tier < tiers.size(); ++tier) {
    if (overlay.left_out().contains(tier)) continue;
    const auto number = newest_attempt_number(*tiers[tier].fs, tiers[tier].root);
    if (!number && number.error().kind != ErrorKind::kCorrupt) overlay.leave_out(tier, number.error());
    if (!number || *number == 0) continue;
    highest = std::max(highest, *number);
    auto attempt = read_attempt(*tiers[tier].fs, tiers[tier].root, *number);
    if (attempt) {
      newest.emplace(tier, std::move(*attempt));
    } else {
      static_cast<void>(overlay.move_on(attempt.error()));  // or scan_catalog() makes the best of it
    }
  }
  return newest;
}

// Of tier 0. Each node that has a directory of its own sends what is pending there (engine/node_exchange.cpp).
std::vector<DeleteNote> deletes_known(const TierOverlay& overlay, std::vector<std::string>& warnings) {
  std::vector<DeleteNote> known;
  const std::vector<TierPlace>& tiers = overlay.tiers();
  for (std::size_t tier = 0; tier < tiers.size(); ++tier) {
    const bool of_other_nodes = tiers[tier].root == OtherNodesFiles::kRoot;
    if ((tier != 0 && !of_other_nodes) || overlay.left_out().contains(tier)) continue;
    auto found = of_other_nodes ? list_delete_notes(*tiers[tier].fs, tiers[tier].root)
                                : pending_deletes(*tiers[tier].fs, tiers[tier].root);
    if (!found) {
      warnings.push_back(
          fmt::format("notes of delete() cannot be looked for, so a step that was deleted may be live "
                      "again: {}",
                      found.error().to_string()));
      continue;
    }
    warnings.insert(warnings.end(), found->warnings.begin(), found->warnings.end());
    known.insert(known.end(), found->notes.begin(), found->notes.end());
  }
  return known;
}

// The user deleted these versions. They must not come back only because a tier did not hear of it yet.
void leave_out_deleted(const std::vector<DeleteNote>& notes, Catalog& catalog, std::vector<std::string>& sentences) {
  std::map<VersionName, std::set<std::string>> left_out;
  for (const DeleteNote& note : notes) {
    std::erase_if(catalog.entries, [&](const CatalogEntry& entry) {
      if (entry.name != note.version || !is_meant(note, entry.run)) return false;
      const bool usable = entry.adoptable() || entry.state == VersionState::kSetAside;
      if (usable) left_out.try_emplace(entry.name);
      return usable || entry.state == VersionState::kReplaced;  // keep_unseen() might make that live
    });
    if (left_out.contains(note.version)) left_out.at(note.version).insert(note.tier);
  }
  for (const auto& [version, tiers] : left_out) {
    sentences.push_back(
        fmt::format("step {} (attempt {}) is not used: it was deleted, and is still to be deleted on {}", version.step,
                    version.attempt, fmt::join(tiers, " and ")));
  }
}

}  // namespace

Result<TierScan> scan_tiers(TierOverlay& overlay, const std::vector<DeleteNote>& deleted) {
  const std::vector<TierPlace>& tiers = overlay.tiers();
  std::uint32_t newest_attempt = 0;
  const std::map<std::size_t, Attempt> newest = newest_attempts(overlay, newest_attempt);
  SW_ASSIGN(const Branches branches, settle_branches(overlay, newest));
  if (overlay.left_out().size() == tiers.size()) return fail(unreachable_tiers(overlay));

  for (;;) {
    // Before the versions: whatever is deleted on its tier in between, and loses its note, is not listed then.
    std::vector<std::string> sentences;
    std::vector<DeleteNote> notes = deletes_known(overlay, sentences);
    notes.insert(notes.end(), deleted.begin(), deleted.end());
    SW_ASSIGN(Catalog catalog, scan_catalog(overlay, overlay.root()));
    bool moved = false;
    for (const CatalogEntry& entry : catalog.entries) {
      if (entry.state == VersionState::kUnreadable && entry.error) moved |= overlay.move_on(*entry.error).has_value();
    }
    if (moved) continue;
    TierScan scan{.catalog = std::move(catalog), .newest_attempt = newest_attempt, .set_aside = {}, .deleted = {}};
    scan.set_aside = unite(overlay, branches, scan.catalog);
    leave_out_deleted(notes, scan.catalog, sentences);
    scan.deleted = std::move(sentences);
    for (std::string& kept : keep_unseen(overlay, newest, branches, scan.catalog))
      scan.set_aside.push_back(std::move(kept));
    return scan;
  }
}

Error unreachable_tiers(const TierOverlay& overlay) {
  const std::map<std::size_t, Error> out = overlay.left_out();
  std::string text;
  for (const auto& [tier, why] : out) {
    text += fmt::format("{}the tier {} cannot be reached: {}", text.empty() ? "" : "; ", overlay.tiers()[tier].root,
                        why.to_string());
  }
  Error error = out.begin()->second;
  error.message = std::move(text);
  error.path = overlay.tiers()[out.begin()->first].root;
  error.kind = ErrorKind::kIo;
  error.retryable = true;
  return error;
}

}  // namespace slackwater
