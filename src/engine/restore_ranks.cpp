// Restore where several ranks save together: all of them place the same version, or none counts as restored.
#include <algorithm>
#include <utility>

#include "base/result.hpp"
#include "commit/restore_agreement.hpp"
#include "engine/engine_impl.hpp"
#include "engine/restorable.hpp"

namespace slackwater {

Result<std::optional<Restored>> Engine::Impl::restore_together(const RestoreOptions& options, const Plan& plan) {
  using Agreement = RestoreAgreement;
  SW_TRY(fleet_->gather({}));
  const std::uint64_t round = restores_++;
  SignsOfLife signs(*coordinator_, *clock_, options_.rank, options_.commit_timeout, round);
  Agreement agreement(*fleet_, *coordinator_, signs, round);

  const auto catalog = [&] {
    std::lock_guard lock(versions_mutex_);
    return versions_->scan();
  }();
  std::vector<CatalogEntry> candidates;
  Agreement::Offer offer{.step = options.step, .versions = {}, .error = {}};
  if (catalog) {
    candidates = restorable(*catalog, options.step);
    for (const CatalogEntry& entry : candidates) offer.versions.push_back(entry.name);
  } else {
    offer.error = catalog.error();
  }

  Placing placing;
  placing.on_progress = [&] { signs.show(); };
  std::size_t told = 0;  // damages already in the log
  SW_ASSIGN(Agreement::Choice choice, agreement.begin(offer));
  for (;;) {
    for (; told < choice.damaged.size(); ++told)
      log_.error("a damaged checkpoint is passed over by all ranks: {}", choice.damaged[told]);
    switch (choice.kind) {
      case Agreement::Choice::Kind::kTry: break;
      case Agreement::Choice::Kind::kDone: {
        const auto entry = std::ranges::find(candidates, choice.version, &CatalogEntry::name);
        use_restored(entry->info, *catalog);
        return std::optional<Restored>(Restored{entry->info, std::move(choice.damaged)});
      }
      case Agreement::Choice::Kind::kNothing:
        if (!options.step) return std::optional<Restored>();
        return fail(
            ErrorKind::kNotFound,
            fmt::format("there is no checkpoint of step {}; there are: {}", *options.step, listed(catalog->counting())),
            options_.path);
      case Agreement::Choice::Kind::kFailed:
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
