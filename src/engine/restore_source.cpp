#include "engine/restore_source.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "engine/listing_exchange.hpp"
#include "engine/node_exchange.hpp"
#include "tiers/tier_scan.hpp"

namespace slackwater {

RestoreSource::RestoreSource(EngineShared& shared, const std::vector<TierPlace>& lower_tiers)
    : shared_(shared), lower_tiers_(lower_tiers) {
  if (lower_tiers.empty()) return;
  for (const TierPlace& tier : lower_tiers) tier.fs->refresh();
  std::vector<TierPlace> places{{shared.fs.get(), shared.options.path}};
  places.insert(places.end(), lower_tiers.begin(), lower_tiers.end());
  overlay_.emplace(std::move(places));
}

Status RestoreSource::exchange(std::uint64_t call) {
  SW_TRY(exchange_node_catalogs(shared_, call, others_));
  std::vector<TierPlace> places{{shared_.fs.get(), shared_.options.path},
                                {&others_, OtherNodesFiles::kRoot, "cannot be read from here"}};
  places.insert(places.end(), lower_tiers_.begin(), lower_tiers_.end());
  overlay_.emplace(std::move(places));
  return {};
}

void RestoreSource::share_listings(std::uint64_t call) { slackwater::share_listings(shared_, lower_tiers_, call); }

void RestoreSource::settle(const VersionName& version) {
  if (!overlay_ || !shared_.options.node_local) return;
  if (const Status settled = settle_node(shared_, *overlay_, version); !settled)
    log_.warn("the directory of this node does not say that step {} is committed: {}", version.step,
              settled.error().to_string());
}

Result<Catalog> RestoreSource::scan() {
  if (!overlay_) return shared_.versions.scan(shared_.jobs);
  SW_TRY(shared_.jobs.usable());
  // The ranks did not see the same: whatever was remembered may be old.
  if (std::exchange(scanned_, true)) {
    for (const TierPlace& tier : lower_tiers_) tier.fs->refresh();
  }
  SW_ASSIGN(Catalog catalog, scan_tiers(*overlay_));
  SW_ASSIGN(newest_attempt_, newest_attempt_number(*overlay_, overlay_->root()));
  shared_.newest_attempt_seen = std::max(shared_.newest_attempt_seen.load(), newest_attempt_);
  if (const auto blind = blind_spot(); blind && !std::exchange(logged_unreachable_, true))
    log_.warn("{}; checkpoints that are only there are not seen", blind->message);
  return catalog;
}

std::optional<Error> RestoreSource::blind_spot() const {
  if (!overlay_ || overlay_->left_out().empty()) return std::nullopt;
  return unreachable_tiers(*overlay_);
}

std::vector<TierPlace> RestoreSource::sources() const {
  std::vector<TierPlace> places;
  const auto left_out = overlay_->left_out();
  for (std::size_t tier = 1; tier < overlay_->tiers().size(); ++tier) {
    if (!left_out.contains(tier) && overlay_->tiers()[tier].fs != &others_) places.push_back(overlay_->tiers()[tier]);
  }
  return places;
}

NodeFetch::Options RestoreSource::fetch_options(const std::function<void()>& on_progress) const {
  return {.rank = shared_.options.rank, .direct_io = shared_.options.direct_io, .on_progress = on_progress};
}

void RestoreSource::fetch(const VersionName& version, const std::vector<std::uint32_t>& saved_by,
                          const std::function<void()>& on_progress) {
  if (!fetches()) return;
  NodeFetch fetch(overlay_->tiers().front(), sources(), fetch_options(on_progress), log_);
  if (const Status fetched = fetch.fetch(version, saved_by); !fetched)
    log_.warn("step {} is read from a lower tier, because it could not be copied to {}: {}", version.step,
              shared_.options.path, fetched.error().to_string());
}

// With several ranks, each that needs a damaged file would read it from below. Instead one of them copies it to tier 0,
// and all read tier 0 again.
bool RestoreSource::mend(const VersionName& version, const Error& error, const std::function<void()>& on_progress) {
  if (!fetches() || error.kind != ErrorKind::kCorrupt) return false;
  const std::string directory = version_path(shared_.options.path, version) + "/";
  if (!error.path.starts_with(directory) || !mended_.insert(error.path).second) return false;
  const std::string name = error.path.substr(directory.size());
  NodeFetch fetch(overlay_->tiers().front(), sources(), fetch_options(on_progress), log_);
  // If that fails, the file can still be read from below, or an error says why not.
  if (!fetch.mend(version, name)) return false;
  log_.warn("step {}: {} was damaged on {} and was copied back from a lower tier: {}", version.step, name,
            shared_.options.path, error.message);
  return true;
}

bool RestoreSource::move_on(const VersionName& version, const Error& error, const std::function<void()>& on_progress) {
  if (!overlay_) return false;
  if (mend(version, error, on_progress)) return true;
  const auto move = overlay_->move_on(error);
  if (!move) return false;
  log_.warn("step {}: {} cannot be used on {} and is read from {} instead: {}", version.step, move->name,
            overlay_->tiers()[move->from].root, overlay_->tiers()[move->to].root, move->why.message);
  return true;
}

Error RestoreSource::explain(Error error) const { return overlay_ ? overlay_->explain(std::move(error)) : error; }

std::optional<RepairOrder> RestoreSource::repair_order(const VersionName& version) const {
  if (!overlay_) return std::nullopt;
  RepairOrder order{.version = version, .sources = {}, .newest_attempt = newest_attempt_};
  order.sources = sources();
  if (order.sources.empty()) return std::nullopt;
  for (const TierOverlay::Damaged& damaged : overlay_->damaged()) {
    if (damaged.tier == 0 && damaged.name.starts_with(version_directory(version) + "/"))
      order.damaged.push_back(damaged.name.substr(version_directory(version).size() + 1));
  }
  // Without a shared directory, the restore has already brought what this node needs.
  if (shared_.options.node_local && order.damaged.empty()) return std::nullopt;
  return order;
}

}  // namespace slackwater
