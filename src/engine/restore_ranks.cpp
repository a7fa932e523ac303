// Restore where several ranks save together: all of them place the same version, or none counts as restored.
#include <algorithm>
#include <utility>

#include "base/result.hpp"
#include "engine/engine_impl.hpp"
#include "engine/restorable.hpp"

namespace slackwater {
namespace {

std::vector<SetAside> set_aside_of(const RestoreAgreement::Choice& choice) {
  std::vector<SetAside> versions;
  for (std::size_t i = 0; i < choice.passed_over.size(); ++i)
    versions.push_back({choice.passed_over[i], i < choice.damaged.size() ? choice.damaged[i] : ""});
  return versions;
}

}  // namespace

// Rank 0 says which versions go on counting. One that only other ranks see is no less a checkpoint.
void Engine::Impl::adopt_unseen(const VersionName& restored, const std::vector<VersionName>& seen) {
  std::lock_guard lock(mutex_);
  for (const VersionName& version : seen) {
    if (version.step <= restored.step && std::ranges::find(to_adopt_, version) == to_adopt_.end())
      to_adopt_.push_back(version);
  }
}

Result<std::optional<Restored>> Engine::Impl::restore_together(const RestoreOptions& options, const Plan& plan) {
  using Agreement = RestoreAgreement;
  SW_TRY(fleet_->gather({}));
  Agreement agreement(*fleet_, *coordinator_, *clock_, restore_calls_);

  Result<Catalog> catalog;
  std::vector<CatalogEntry> candidates;
  const auto look = [&] {
    {
      std::lock_guard lock(versions_mutex_);
      const Status open = usable();  // close() may have come meanwhile, and taken the store away
      catalog = open ? versions_->scan() : fail(open.error());
    }
    Agreement::Offer offer{.step = options.step, .versions = {}, .error = {}};
    if (!catalog) {
      offer.error = catalog.error();
      return offer;
    }
    candidates = restorable(*catalog, options.step);
    for (const CatalogEntry& entry : candidates) offer.versions.push_back(entry.name);
    return offer;
  };

  Placing placing;
  placing.on_progress = [&] { agreement.came_further(); };
  std::size_t told = 0;  // damages already in the log
  fleet_->begin_restore();
  SW_ASSIGN(Agreement::Choice choice, agreement.begin(look()));
  for (;;) {
    for (; told < choice.damaged.size(); ++told)
      log_.error("a damaged checkpoint is passed over by all ranks: {}", choice.damaged[told]);
    for (const std::string& version : choice.unseen)
      log_.warn("some ranks do not see an older checkpoint; it is kept: {}", version);
    switch (choice.kind) {
      case Agreement::Choice::Kind::kTry: break;
      case Agreement::Choice::Kind::kDone: {
        const auto entry = std::ranges::find(candidates, choice.version, &CatalogEntry::name);
        use_restored(entry->info, *catalog, set_aside_of(choice));
        adopt_unseen(choice.version, choice.seen);
        fleet_->finish_restore({choice.round, choice.version}, choice.announcements);
        return std::optional<Restored>(Restored{entry->info, std::move(choice.damaged)});
      }
      case Agreement::Choice::Kind::kNothing:
        fleet_->fail_restore();
        if (!options.step) return std::optional<Restored>();
        return fail(
            ErrorKind::kNotFound,
            fmt::format("there is no checkpoint of step {}; there are: {}", *options.step, listed(catalog->counting())),
            options_.path);
      case Agreement::Choice::Kind::kLookAgain: {
        log_.warn("the ranks do not see the same checkpoints; all ranks list the directory again");
        SW_ASSIGN(choice, agreement.look_again(look()));
        continue;
      }
      case Agreement::Choice::Kind::kFailed:
        fleet_->fail_restore();
        if (choice.error.path.empty()) choice.error.path = options_.path;
        if (placing.began) choice.error.message += kUndefinedState;
        return fail(std::move(choice.error));
    }

    const auto entry = std::ranges::find(candidates, choice.version, &CatalogEntry::name);
    const Status status = entry != candidates.end()
                              ? place_version(*entry, options, plan, placing)
                              : fail(ErrorKind::kNotFound, "this rank does not see the version", options_.path);
    auto verdict = Agreement::Verdict::kGood;
    if (!status) {
      const bool passable =
          is_damage(status.error()) && !placing.refusal && options_.on_damage == OnDamage::kFallback && !options.step;
      verdict = passable ? Agreement::Verdict::kDamaged : Agreement::Verdict::kRefused;
    }
    SW_ASSIGN(choice, agreement.next(verdict, status ? Error{} : status.error()));
  }
}

}  // namespace slackwater
