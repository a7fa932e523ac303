#include "tiers/tier_scan.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/result.hpp"
#include "os/retry.hpp"
#include "tiers/tier.hpp"

namespace slackwater {
namespace {

// Whether the tier answers. A directory that is missing together with its parent is a mount that is not there. If only
// the directory itself is missing, nothing was ever copied to it.
Status probe(const TierPlace& tier) {
  const auto entries = retry_read([&] { return tier.fs->list(tier.root); });
  if (entries) return {};
  if (entries.error().kind != ErrorKind::kNotFound) return fail(entries.error());
  if (is_object_location(tier.root)) return {};
  const auto slash = tier.root.rfind('/');
  const std::string parent = slash == std::string::npos ? "." : tier.root.substr(0, std::max<std::size_t>(slash, 1));
  const auto found = retry_read([&] { return tier.fs->status(parent + "/."); });
  if (found) return {};
  return fail(found.error().kind == ErrorKind::kNotFound ? entries.error() : found.error());
}

// The attempt file that decides comes from the first tier on which it is intact.
void settle_attempt(TierOverlay& overlay) {
  const std::vector<TierPlace>& tiers = overlay.tiers();
  std::map<std::size_t, std::uint32_t> newest;
  for (std::size_t tier = 0; tier < tiers.size(); ++tier) {
    if (overlay.left_out().contains(tier)) continue;
    const auto number = newest_attempt_number(*tiers[tier].fs, tiers[tier].root);
    if (number) {
      newest[tier] = *number;
    } else if (number.error().kind != ErrorKind::kCorrupt) {
      overlay.leave_out(tier, number.error());
    }
  }
  std::uint32_t highest = 0;
  for (const auto& [tier, number] : newest) highest = std::max(highest, number);
  if (highest == 0) return;
  for (const auto& [tier, number] : newest) {
    if (number != highest) continue;
    const auto attempt = read_attempt(*tiers[tier].fs, tiers[tier].root, number);
    if (attempt) return;
    if (!overlay.move_on(attempt.error())) return;  // scan_catalog() makes the best of it
  }
}

}  // namespace

Result<Catalog> scan_tiers(TierOverlay& overlay) {
  const std::vector<TierPlace>& tiers = overlay.tiers();
  for (std::size_t tier = 0; tier < tiers.size(); ++tier) {
    if (Status reached = probe(tiers[tier]); !reached) overlay.leave_out(tier, std::move(reached).error());
  }
  settle_attempt(overlay);
  if (overlay.left_out().size() == tiers.size()) return fail(unreachable_tiers(overlay));

  for (;;) {
    SW_ASSIGN(Catalog catalog, scan_catalog(overlay, overlay.root()));
    bool moved = false;
    for (const CatalogEntry& entry : catalog.entries) {
      if (entry.state == VersionState::kUnreadable && entry.error) moved |= overlay.move_on(*entry.error).has_value();
    }
    if (!moved) return catalog;
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
