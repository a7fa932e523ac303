#include "engine/live_versions.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "version/manifest_cache.hpp"

namespace slackwater {

LiveVersions::LiveVersions(const Catalog& at_open, const RetentionPolicy& policy,
                           std::function<std::set<VersionName>()> held)
    : policy_(policy),
      held_(std::move(held)),
      live_versions_(at_open.live_versions()),
      set_aside_(at_open.set_aside()) {
  for (const CatalogEntry& entry : at_open.entries) {
    if (entry.adoptable() && entry.state == VersionState::kUnreadable) unreadable_.push_back(entry.name);
  }
}

std::optional<std::uint64_t> LiveVersions::newest_step() const {
  std::optional<std::uint64_t> newest;
  for (const VersionInfo& version : live_versions_) newest = std::max(newest.value_or(0), version.step);
  for (const VersionName& version : unreadable_) newest = std::max(newest.value_or(0), version.step);
  return newest;
}

void LiveVersions::adopt_all() {
  if (attempt_ || !to_adopt_.empty()) return;
  for (const VersionInfo& version : live_versions_) to_adopt_.push_back(name_of(version));
  to_adopt_.insert(to_adopt_.end(), unreadable_.begin(), unreadable_.end());
}

void LiveVersions::go_on_from(const VersionInfo& version, const Seen& seen) {
  attempt_.reset();
  to_adopt_.clear();
  continued_ = {.step = version.step, .left_behind = {}};
  const VersionName chosen{version.step, version.attempt};
  restored_ = {.name = chosen, .run = {}};
  for (const CatalogEntry& entry : seen.catalog.entries) {
    if (entry.name == chosen) restored_->run = entry.run;
    // Every version that exists, whether or not it can be read now.
    if ((entry.adoptable() && entry.name.step <= version.step) || entry.name == chosen) {
      to_adopt_.push_back(entry.name);
    } else if (entry.adoptable() && seen.step_asked_for) {
      continued_.left_behind.push_back(entry.name);
    }
  }
  set_aside_ = seen.catalog.set_aside();
  set_aside_.insert(set_aside_.end(), seen.passed_over.begin(), seen.passed_over.end());
  std::erase_if(set_aside_, [&](const SetAside& aside) { return aside.version == chosen; });
  seen_without_tier_0_ = seen.tier_0 ? nullptr : std::make_shared<const Catalog>(seen.catalog);
  ++epoch_;
}

void LiveVersions::adopt_unseen(const VersionName& restored, const std::vector<VersionName>& seen) {
  for (const VersionName& version : seen) {
    if (version.step <= restored.step && std::ranges::find(to_adopt_, version) == to_adopt_.end())
      to_adopt_.push_back(version);
  }
}

void LiveVersions::begin_attempt(const Attempt& attempt) {
  attempt_ = attempt;
  to_adopt_.clear();
  // Versions after a rollback are not live any more. They may go once this attempt has committed a version.
  sweep_due_ = true;
  std::erase_if(live_versions_, [&](const VersionInfo& version) {
    return !std::ranges::binary_search(attempt_->adopted, name_of(version));
  });
}

bool LiveVersions::add_committed(const Manifest& manifest, bool pinned) {
  VersionInfo version = version_info(manifest);
  version.pinned = pinned;
  if (clean_up_) clean_up_->committed_meanwhile.push_back(version);
  const bool due = add(version);
  return std::exchange(sweep_due_, false) || due;
}

// True: an older version expires because of it, and is no longer live.
bool LiveVersions::add(const VersionInfo& version) {
  if (std::ranges::find(live_versions_, name_of(version), name_of) == live_versions_.end()) {
    live_versions_.push_back(version);
  }
  const auto names = expired(live_versions_, policy_);
  std::set<VersionName> gone(names.begin(), names.end());
  for (const VersionName& name : held_()) gone.erase(name);
  std::erase_if(live_versions_, [&](const VersionInfo& info) { return gone.contains(name_of(info)); });
  return !gone.empty();
}

void LiveVersions::note_pinned(const VersionName& version) {
  const auto pinned = std::ranges::find(live_versions_, version, name_of);
  if (pinned != live_versions_.end()) pinned->pinned = true;
}

void LiveVersions::note_removed(const VersionName& name) {
  if (restored_ && restored_->name == name) restored_.reset();
  std::erase_if(set_aside_, [&](const SetAside& aside) { return aside.version == name; });
  std::erase_if(live_versions_, [&](const VersionInfo& version) { return name_of(version) == name; });
}

void LiveVersions::add_repaired(const VersionInfo& version) {
  const auto at = std::ranges::lower_bound(live_versions_, name_of(version), {}, name_of);
  if (at == live_versions_.end() || name_of(*at) != name_of(version)) live_versions_.insert(at, version);
}

bool LiveVersions::begin_clean_up() {
  if (attempt_) clean_up_ = CleanUp{.attempt = attempt_->number};
  return attempt_.has_value();
}

void LiveVersions::end_clean_up(std::optional<std::vector<VersionInfo>> left) {
  const CleanUp ended = *std::exchange(clean_up_, std::nullopt);
  if (!left || !attempt_ || attempt_->number != ended.attempt) return;
  std::set<VersionName> pinned;  // perhaps since `left` was listed; a pin is never removed
  for (const VersionInfo& version : live_versions_)
    if (version.pinned) pinned.insert(name_of(version));
  live_versions_ = std::move(*left);
  const auto with_its_pin = [&](VersionInfo version) {
    version.pinned |= pinned.contains(name_of(version));
    return version;
  };
  std::ranges::transform(live_versions_, live_versions_.begin(), with_its_pin);
  for (const VersionInfo& version : ended.committed_meanwhile) add(with_its_pin(version));
}

}  // namespace slackwater
