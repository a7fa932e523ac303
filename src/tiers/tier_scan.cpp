#include "tiers/tier_scan.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/result.hpp"
#include "tiers/tier_branches.hpp"

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

}  // namespace

Result<TierScan> scan_tiers(TierOverlay& overlay) {
  const std::vector<TierPlace>& tiers = overlay.tiers();
  std::uint32_t newest_attempt = 0;
  SW_ASSIGN(const Branches branches, settle_branches(overlay, newest_attempts(overlay, newest_attempt)));
  if (overlay.left_out().size() == tiers.size()) return fail(unreachable_tiers(overlay));

  for (;;) {
    SW_ASSIGN(Catalog catalog, scan_catalog(overlay, overlay.root()));
    bool moved = false;
    for (const CatalogEntry& entry : catalog.entries) {
      if (entry.state == VersionState::kUnreadable && entry.error) moved |= overlay.move_on(*entry.error).has_value();
    }
    if (moved) continue;
    TierScan scan{.catalog = std::move(catalog), .newest_attempt = newest_attempt, .set_aside = {}};
    scan.set_aside = unite(overlay, branches, scan.catalog);
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
