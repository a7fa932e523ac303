#include "tiers/promotions.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace slackwater {
namespace {

// Off the trainer's thread, and once per attempt. The copies of the first step wait for it.
constexpr std::chrono::seconds kSurveyPatience{2};

}  // namespace

Promotions::Promotions(const std::vector<Tier>& tiers, const PromotionSource& source) : source_(source) {
  for (const Tier& tier : tiers)
    promoters_.push_back(std::make_unique<Promoter>(tier, source_, static_cast<unsigned>(promoters_.size() + 1)));
}

void Promotions::start() {
  for (const auto& promoter : promoters_) promoter->start();
}

void Promotions::stop() {
  for (const auto& promoter : promoters_) promoter->stop();
}

Promotions::Survey Promotions::survey(std::optional<std::uint64_t> continued) {
  Survey all;
  const auto deadline = std::chrono::steady_clock::now() + kSurveyPatience;
  for (const auto& promoter : promoters_) {
    const auto survey = promoter->wait_survey(deadline);
    if (!survey) continue;
    all.newest_attempt = std::max(all.newest_attempt, survey->newest_attempt);
    const Adoption adoption = adopt_from(*survey, source_.local, source_.root, 0, continued);
    all.adoption.adopted.insert(all.adoption.adopted.end(), adoption.adopted.begin(), adoption.adopted.end());
    all.adoption.set_aside.insert(all.adoption.set_aside.end(), adoption.set_aside.begin(), adoption.set_aside.end());
  }
  return all;
}

void Promotions::begin_attempt(const Attempt& attempt, std::optional<std::uint64_t> continued) {
  for (const auto& promoter : promoters_) promoter->backlog().begin_attempt(attempt, continued);
}

void Promotions::offer(const VersionName& version) {
  for (const auto& promoter : promoters_) promoter->backlog().offer(version);
}

void Promotions::remove(const VersionName& version) {
  for (const auto& promoter : promoters_) promoter->backlog().remove(version);
}

std::set<VersionName> Promotions::held() const {
  std::set<VersionName> all;
  for (const auto& promoter : promoters_) all.merge(promoter->backlog().held());
  return all;
}

std::vector<TierStatus> Promotions::status() const {
  std::vector<TierStatus> all;
  for (const auto& promoter : promoters_) all.push_back(promoter->backlog().status());
  return all;
}

Status Promotions::wait_idle(std::optional<std::chrono::steady_clock::time_point> deadline,
                             std::chrono::milliseconds patience) const {
  std::string left;
  std::string refused;
  for (const auto& promoter : promoters_) {
    const bool idle = promoter->backlog().wait_idle(deadline, patience);
    if (const auto refusal = promoter->backlog().refusal()) {
      refused += fmt::format("{}{}", refused.empty() ? "" : "; ", refusal->to_string());
      continue;
    }
    if (idle) continue;
    const TierStatus status = promoter->backlog().status();
    const std::string steps = fmt::format("{}", fmt::join(status.waiting, ", "));
    const std::string what = steps.empty() ? fmt::format("{} does not respond", status.location)
                                           : fmt::format("steps {} are not on {}", steps, status.location);
    left += fmt::format("{}{}{}{}", left.empty() ? "" : "; ", what, status.last_error.empty() ? "" : ": ",
                        status.last_error);
  }
  if (!refused.empty()) {
    return fail(ErrorKind::kAborted,
                fmt::format("checkpoints were not copied: {}{}{}", refused, left.empty() ? "" : "; ", left),
                source_.root);
  }
  if (left.empty()) return {};
  return fail(ErrorKind::kTimeout, fmt::format("not everything was copied; the next run continues: {}", left),
              source_.root);
}

}  // namespace slackwater
