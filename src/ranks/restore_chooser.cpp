#include "ranks/restore_chooser.hpp"

#include <utility>

#include <fmt/format.h>

#include "base/units.hpp"
#include "ranks/rank_transport.hpp"

namespace slackwater {
namespace {

// All ranks list again this often, after a pause that doubles each time. In all, that is less than half the time-out.
constexpr unsigned kListings = 3;
constexpr int kFirstPause = 16;  // the time-out divided by this

std::string asked_for(const std::optional<std::uint64_t>& step) {
  return step ? fmt::format("step {}", *step) : "the newest";
}

}  // namespace

Error silent_ranks(const std::vector<std::uint32_t>& ranks, const char* what, std::chrono::milliseconds timeout,
                   int quarters) {
  const double waited_s = std::chrono::duration<double>(timeout).count() * quarters / 4;
  return {ErrorKind::kTimeout,
          fmt::format("{} {} within {}; call restore on all ranks, equally often, or raise commit_timeout",
                      name_ranks(ranks), what, format_seconds(waited_s)),
          {},
          0,
          true};
}

RestoreChoice RestoreChooser::choose(const std::optional<std::uint64_t>& step, const RankReports& offers,
                                     const std::string& where) {
  std::map<std::uint32_t, RestoreOffer> parsed;
  std::vector<std::uint32_t> present;
  for (const auto& [rank, report] : offers) {
    auto offer = parse_offer(report, where);
    if (!offer) continue;
    present.push_back(rank);
    parsed[rank] = std::move(*offer);
  }
  // A missing rank might be the only one that sees the newest version, or the one that cannot read it.
  if (const auto missing = ranks_except(present, world_); !missing.empty())
    return failed(silent_ranks(missing, "did not call restore", timeout_, 4));

  seen_by_.clear();
  for (auto& [rank, offer] : parsed) {
    // A rank that cannot list sees nothing, but that does not mean that there is nothing.
    if (offer.error) {
      offer.error->message = fmt::format("rank {}: {}", rank, offer.error->message);
      return failed(std::move(*offer.error));
    }
    if (offer.step != step) {
      return failed({ErrorKind::kInvalidArgument,
                     fmt::format("rank {} asks for {}, rank 0 for {}; ask for the same on all ranks", rank,
                                 asked_for(offer.step), asked_for(step)),
                     {}});
    }
    for (const VersionName& version : offer.versions) seen_by_[version].push_back(rank);
  }
  // Listing again brings back the versions that were found damaged. They must not be tried twice.
  for (const VersionName& version : skipped_) seen_by_.erase(version);
  return pick();
}

RestoreChoice RestoreChooser::judge(const RankReports& verdicts, const std::string& where) {
  std::vector<std::uint32_t> present;
  std::vector<std::string> damages;
  std::optional<Error> refusal;
  for (const auto& [rank, report] : verdicts) {
    auto parsed = parse_verdict(report, where);
    if (!parsed) continue;
    present.push_back(rank);
    auto& [verdict, error] = *parsed;
    switch (verdict) {
      case RestoreVerdict::kGood: break;
      case RestoreVerdict::kDamaged: damages.push_back(fmt::format("rank {}: {}", rank, error.to_string())); break;
      case RestoreVerdict::kRefused:
        if (refusal) break;
        error.message = fmt::format("rank {}: {}", rank, error.message);
        refusal = std::move(error);
        break;
    }
  }
  // Silence is not consent: a rank that died in the middle has restored nothing.
  if (const auto missing = ranks_except(present, world_); !missing.empty())
    return failed(silent_ranks(missing, "did not say how its restore went", timeout_, 4));
  // A refusal comes before damage: an older version would be refused for the same reason.
  if (refusal) return failed(std::move(*refusal));
  if (damages.empty()) {
    RestoreChoice done;
    done.kind = RestoreChoice::Kind::kDone;
    done.version = trying_;
    for (const auto& [version, ranks] : seen_by_) done.seen.push_back(version);
    return complete(std::move(done));
  }
  damaged_.push_back(fmt::format("step {}: {}", trying_.step, fmt::join(damages, "; ")));
  skipped_.push_back(trying_);
  seen_by_.erase(trying_);
  return pick();
}

RestoreChoice RestoreChooser::pick() {
  RestoreChoice choice;
  if (seen_by_.empty() && damaged_.empty()) {
    choice.kind = RestoreChoice::Kind::kNothing;
    return complete(std::move(choice));
  }
  if (seen_by_.empty()) {
    std::string all;
    for (const std::string& damage : damaged_) all += "\n  " + damage;
    return failed({ErrorKind::kCorrupt, fmt::format("no checkpoint could be restored by all ranks:{}", all), {}});
  }
  const auto& [newest, ranks] = *seen_by_.rbegin();
  if (ranks.size() == world_) {
    choice.kind = RestoreChoice::Kind::kTry;
    choice.version = trying_ = newest;
    for (const auto& [version, seen] : seen_by_) {
      if (seen.size() != ranks.size()) choice.unseen.push_back(only_some_see(version, seen));
    }
    return complete(std::move(choice));
  }
  if (listings_ < kListings) {
    ++listings_;
    choice.kind = RestoreChoice::Kind::kListAgain;
    return complete(std::move(choice));
  }
  return failed({ErrorKind::kMismatch,
                 fmt::format("{}; check that all ranks see the same directory and call restore again, or restore an "
                             "older step by its number (restore(step=...))",
                             only_some_see(newest, ranks)),
                 {},
                 0,
                 true});
}

Duration RestoreChooser::pause() const { return Duration(timeout_) / kFirstPause * (1 << (listings_ - 1)); }

RestoreChoice RestoreChooser::failed(Error error) const {
  RestoreChoice choice;
  choice.error = std::move(error);
  return complete(std::move(choice));
}

RestoreChoice RestoreChooser::complete(RestoreChoice choice) const {
  choice.damaged = damaged_;
  choice.passed_over = skipped_;
  return choice;
}

std::string RestoreChooser::only_some_see(const VersionName& version, const std::vector<std::uint32_t>& ranks) const {
  const char* const verb = ranks.size() + 1 == world_ ? "does" : "do";
  return fmt::format("step {}: only {} of {} ranks see it, {} {} not", version.step, ranks.size(), world_,
                     name_ranks(ranks_except(ranks, world_)), verb);
}

}  // namespace slackwater
