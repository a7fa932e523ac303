#include "version/retention.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <utility>

#include <fmt/format.h>

namespace slackwater {
namespace {

// Among equals, the newer ones: they were trained for longer. A version without the metric, or with one that is not
// finite, is never among the best, however few there are.
std::set<VersionName> best_of(const std::vector<VersionInfo>& live, const KeepBest& best) {
  std::vector<std::pair<double, VersionName>> ranked;
  if (best.count > 0) {
    for (const VersionInfo& version : live) {
      const auto metric = version.metrics.find(best.metric);
      if (metric == version.metrics.end() || !std::isfinite(metric->second)) continue;
      ranked.emplace_back(best.highest ? metric->second : -metric->second, name_of(version));
    }
  }
  std::ranges::sort(ranked, std::greater());
  ranked.resize(std::min<std::size_t>(ranked.size(), best.count));
  std::set<VersionName> names;
  for (const auto& [metric, name] : ranked) names.insert(name);
  return names;
}

}  // namespace

std::vector<VersionName> expired(const std::vector<VersionInfo>& live, const RetentionPolicy& policy) {
  std::vector<VersionName> names;
  if (policy.keep == 0 || live.size() <= policy.keep) return names;
  const std::set<VersionName> best = best_of(live, policy.best);
  const std::size_t older = live.size() - static_cast<std::size_t>(policy.keep);
  for (std::size_t i = 0; i < older; ++i) {
    const VersionInfo& version = live[i];
    const bool kept_by_step = policy.keep_every != 0 && version.step % policy.keep_every == 0;
    if (!kept_by_step && !version.pinned && !best.contains(name_of(version))) names.push_back(name_of(version));
  }
  return names;
}

bool is_meant(const DeleteNote& note, const std::string& saved_by) {
  return note.run.empty() || saved_by.empty() || note.run == saved_by;
}

std::vector<Removal> leftovers(const Catalog& catalog, const Sweeper& sweeper) {
  // Whether nobody can decide it any more: its attempt is over, or all ranks have gone on to a later step.
  const auto settled = [&](const VersionName& name) {
    return name.attempt < sweeper.attempt ||
           (name.attempt == sweeper.attempt && !sweeper.alone && name.step < sweeper.settled_below);
  };
  std::vector<Removal> removals;
  for (const CatalogEntry& entry : catalog.entries) {
    switch (entry.state) {
      case VersionState::kLive:        // expired() decides
      case VersionState::kSetAside:    // only delete() and gc remove it
      case VersionState::kUnreadable:  // it may be readable tomorrow
        break;
      case VersionState::kReplaced:
        // A commit of a newer attempt stays: it means that this run is over.
        if (sweeper.committed && entry.name.attempt <= sweeper.attempt && !entry.info.pinned)
          removals.push_back({entry.name, "a rollback to an earlier step left it behind"});
        break;
      case VersionState::kAborted:
        if ((sweeper.alone && entry.name.attempt <= sweeper.attempt) || settled(entry.name))
          removals.push_back({entry.name, "its writer gave it up", false});
        break;
      case VersionState::kUndecided:
        if (sweeper.abandoned.contains(entry.name)) {
          removals.push_back({entry.name, "it was given up, but could not be removed then", false});
        } else if (sweeper.own_copies) {
          // The caller leaves out those that are held: their copy is under way, or continues.
          if (sweeper.own_copies->contains(entry.name) && entry.name.attempt <= sweeper.attempt)
            removals.push_back({entry.name, "its copy was given up", false});
        } else if (settled(entry.name) && !sweeper.in_doubt.contains(entry.name)) {
          removals.push_back({entry.name, "it was never committed, and its writer is gone", false});
        }
        break;
    }
  }
  return removals;
}

namespace {

std::string beyond_keep(const RetentionPolicy& policy) {
  std::string why = fmt::format("only the newest {} are kept (keep)", policy.keep);
  if (policy.best.count > 0)
    why += fmt::format(", and the {} with the best '{}' (keep_best)", policy.best.count, policy.best.metric);
  return why;
}

}  // namespace

std::vector<Removal> surplus(const Catalog& catalog, const std::vector<VersionName>& adopted,
                             const RetentionPolicy& policy) {
  std::vector<VersionInfo> live = catalog.live_versions();
  std::erase_if(
      live, [&](const VersionInfo& version) { return std::ranges::find(adopted, name_of(version)) == adopted.end(); });
  std::vector<Removal> removals;
  for (const VersionName& name : expired(live, policy)) removals.push_back({name, beyond_keep(policy)});
  return removals;
}

namespace {

std::vector<Removal> removable_if_not_held(const Catalog& catalog, const RunState& run, const RetentionPolicy& policy,
                                           Need need) {
  std::vector<VersionInfo> live = catalog.live_versions();
  // It is not reported as committed yet, so none may go because this one takes its place.
  std::erase_if(live, [&](const VersionInfo& version) { return run.deciding == name_of(version); });
  std::vector<VersionInfo> sure = live;
  std::erase_if(sure, [&](const VersionInfo& version) {
    // A version that was given up may still be visible, until it can be removed.
    return run.doubtful.contains(name_of(version)) || run.abandoned.contains(name_of(version));
  });

  Sweeper sweeper{.attempt = run.attempt, .alone = run.alone, .in_doubt = run.doubtful};
  if (run.deciding) sweeper.in_doubt.insert(*run.deciding);
  sweeper.abandoned = run.abandoned;
  sweeper.own_copies = run.own_copies;
  for (const VersionInfo& version : sure) {
    if (version.attempt != run.attempt) continue;
    sweeper.committed = true;
    // A rank votes for a step only when it is done with all steps before it. So nobody writes a step below the newest
    // commit any more.
    sweeper.settled_below = std::max(sweeper.settled_below, version.step);
  }
  if (need == Need::kSpace) sweeper.committed = true;
  std::vector<Removal> removals = leftovers(catalog, sweeper);
  if (need == Need::kSpace) {
    for (const VersionInfo& version : live) {
      if (run.doubtful.contains(name_of(version)) && version.attempt == run.attempt)  // not what was restored
        removals.push_back({name_of(version), "the disk is full, and it was never reported as committed (in doubt)"});
    }
  }
  // Before the first commit of this attempt nothing live goes, unless there is no other way to ever commit: a run that
  // was killed before it deleted may have left so much that one more version does not fit on the disk.
  if (!sweeper.committed && need != Need::kSpace) return removals;
  const std::string why = beyond_keep(policy);
  for (const VersionName& name : expired(live, policy)) {  // a version in doubt expires like any other
    if (run.doubtful.contains(name) && need != Need::kSpace) removals.push_back({name, why});
  }
  for (const VersionName& name : expired(sure, policy)) removals.push_back({name, why});
  return removals;
}

}  // namespace

std::vector<Removal> removable(const Catalog& catalog, const RunState& run, const RetentionPolicy& policy, Need need) {
  const std::vector<Removal> all = removable_if_not_held(catalog, run, policy, need);
  std::vector<Removal> removals = all;
  std::erase_if(removals, [&](const Removal& removal) { return run.held.contains(removal.version); });
  const bool last_resort = need == Need::kSpace && removals.empty() && !run.own_copies;
  return last_resort ? all : removals;
}

}  // namespace slackwater
