#include "engine/restore_source.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "engine/listing_exchange.hpp"
#include "engine/node_exchange.hpp"
#include "store/s3/locations.hpp"
#include "tiers/tier_scan.hpp"

namespace slackwater {

RestoreSource::RestoreSource(EngineShared& shared, const std::vector<TierPlace>& lower_tiers, TierProbes& probes)
    : shared_(shared), lower_tiers_(lower_tiers), probes_(probes) {
  if (lower_tiers.empty()) return;
  for (const TierPlace& tier : lower_tiers) tier.fs->refresh();
  make_overlay();
}

void RestoreSource::make_overlay() {
  std::vector<TierPlace> places{{shared_.fs.get(), shared_.options.path}};
  if (exchanged_) places.push_back({&others_, OtherNodesFiles::kRoot, "cannot be read from here"});
  places.insert(places.end(), lower_tiers_.begin(), lower_tiers_.end());
  overlay_.emplace(std::move(places));
}

Status RestoreSource::exchange(std::uint64_t call) {
  SW_ASSIGN(const std::vector<DeleteNote> noted, exchange_node_catalogs(shared_, call, others_));
  shared_.promotions.hear_deletes(noted);
  exchanged_ = true;
  make_overlay();
  return {};
}

void RestoreSource::share_listings(std::uint64_t call) {
  const bool any = std::ranges::any_of(lower_tiers_, [](const auto& tier) { return is_object_location(tier.root); });
  // A restore from memory must not wait for a list. All ranks have the same options.
  if (!any || shared_.memory) return;
  std::vector<TierPlace> reached = lower_tiers_;
  if (shared_.options.rank == 0) {  // the others wait for it, so it must not wait long for a store itself
    const auto answers = probes_.ask(lower_tiers_, shared_.tier_answer_timeout);
    for (const auto& [tier, error] : answers.unreachable)
      std::erase_if(reached, [&, at = tier](const TierPlace& place) { return place.root == lower_tiers_[at].root; });
  }
  slackwater::share_listings(shared_, reached, call);
}

bool RestoreSource::newer_below(std::uint32_t attempt) {
  constexpr std::chrono::milliseconds kAtMost{1'500};
  const TierProbes::Answers answers = probes_.ask(lower_tiers_, std::min(kAtMost, shared_.tier_answer_timeout));
  for (std::size_t tier = 0; tier < lower_tiers_.size(); ++tier) {
    if (answers.unreachable.contains(tier)) continue;
    const auto newest = newest_attempt_number(*lower_tiers_[tier].fs, lower_tiers_[tier].root);
    if (newest && *newest > attempt) return true;
  }
  return false;
}

void RestoreSource::settle(const VersionName& version) {
  if (!overlay_ || !shared_.options.node_local) return;
  if (const Status settled = settle_node(shared_, *overlay_, version); !settled)
    log_.warn("the directory of this node does not say that step {} is committed: {}", version.step,
              settled.error().to_string());
}

Result<Catalog> RestoreSource::scan_tier_0() {
  SW_TRY(shared_.jobs.usable());
  return scan_catalog(*shared_.fs, shared_.options.path);
}

bool RestoreSource::leave_out_unreachable(std::optional<std::chrono::milliseconds> timeout) {
  const TierPlace& tier_0 = overlay_->tiers().front();
  if (Status reached = probe_tier(tier_0); !reached) overlay_->leave_out(0, std::move(reached).error());
  const TierProbes::Answers answers = probes_.ask(lower_tiers_, timeout);
  const std::size_t first = overlay_->tiers().size() - lower_tiers_.size();
  for (const auto& [tier, error] : answers.unreachable) overlay_->leave_out(first + tier, error);
  return answers.late;
}

Result<Catalog> RestoreSource::scan() {
  if (!overlay_) return shared_.versions.scan(shared_.jobs);
  SW_TRY(shared_.jobs.usable());
  // The ranks did not see the same: whatever was remembered may be old.
  if (std::exchange(scanned_, true)) {
    for (const TierPlace& tier : lower_tiers_) tier.fs->refresh();
  }
  const bool late = leave_out_unreachable(shared_.tier_answer_timeout);
  if (!late) return scan_reached();
  const bool all_late = overlay_->left_out().size() == overlay_->tiers().size();
  Result<Catalog> catalog = all_late ? Result<Catalog>(Catalog()) : scan_reached();
  if (!catalog || std::ranges::any_of(catalog->entries, &CatalogEntry::adoptable)) return catalog;
  // The tier that has not answered may have the only checkpoint.
  make_overlay();
  static_cast<void>(leave_out_unreachable({}));
  return scan_reached();
}

Result<Catalog> RestoreSource::scan_reached() {
  auto scanned = scan_tiers(*overlay_, shared_.promotions.deletes());
  if (!scanned && scanned.error().kind == ErrorKind::kNotFound) {  // of those that can be reached, none exists yet
    if (auto error = unreachable_tier_error()) return fail(std::move(*error));
  }
  SW_ASSIGN(TierScan scan, std::move(scanned));
  deciding_attempt_ = scan.catalog.newest_attempt;
  newest_attempt_ = scan.newest_attempt;
  shared_.newest_attempt_seen = std::max(shared_.newest_attempt_seen.load(), newest_attempt_);
  if (const auto error = unreachable_tier_error())
    warn_once(fmt::format("{}; checkpoints stored only there cannot be used", error->message));
  for (const std::string& branch : scan.set_aside) warn_once(branch);
  for (const std::string& version : scan.deleted) warn_once(version);
  return std::move(scan.catalog);
}

void RestoreSource::warn_once(const std::string& text) {
  if (told_.insert(text).second) log_.warn("{}", text);
}

std::optional<Error> RestoreSource::unreachable_tier_error() const {
  if (!overlay_ || overlay_->left_out().empty()) return std::nullopt;
  return unreachable_tiers(*overlay_);
}

std::vector<TierPlace> RestoreSource::sources(const VersionName& version) const {
  std::vector<TierPlace> places;
  for (const std::size_t tier : overlay_->tiers_for(version_directory(version))) {
    if (tier != 0 && overlay_->tiers()[tier].fs != &others_) places.push_back(overlay_->tiers()[tier]);
  }
  return places;
}

NodeFetch::Options RestoreSource::fetch_options(const std::function<void()>& on_progress) const {
  return {.rank = shared_.options.rank, .direct_io = shared_.options.direct_io, .on_progress = on_progress};
}

void RestoreSource::fetch(const VersionName& version, const std::vector<std::uint32_t>& saved_by,
                          const std::function<void()>& on_progress) {
  if (!fetches()) return;
  NodeFetch fetch(overlay_->tiers().front(), sources(version), fetch_options(on_progress), log_);
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
  NodeFetch fetch(overlay_->tiers().front(), sources(version), fetch_options(on_progress), log_);
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
  RepairOrder order{.version = version, .sources = {}, .attempt = deciding_attempt_, .newest_attempt = newest_attempt_};
  order.sources = sources(version);
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
