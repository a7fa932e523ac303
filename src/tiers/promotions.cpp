#include "tiers/promotions.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/result.hpp"
#include "version/delete_notes.hpp"

namespace slackwater {
namespace {

// Off the trainer's thread, and once per attempt. The copies of the first step wait for it.
constexpr std::chrono::seconds kSurveyTimeout{2};

DeleteNote note_for(const Promoter& promoter, const VersionName& version, const std::string& run) {
  return {.version = version, .run = run, .tier = noted_location(promoter.tier().root())};
}

}  // namespace

Promotions::Promotions(const std::vector<Tier>& tiers, const PromotionSource& source) : source_(source) {
  PromotionSource each = source;
  each.buffer_bytes = source.buffer_bytes / std::max<std::size_t>(1, tiers.size());
  for (const Tier& tier : tiers)
    promoters_.push_back(std::make_unique<Promoter>(tier, each, static_cast<unsigned>(promoters_.size() + 1)));
}

void Promotions::start() {
  for (const auto& promoter : promoters_) promoter->start();
}

void Promotions::stop() {
  for (const auto& promoter : promoters_) promoter->stop();
}

Promotions::Survey Promotions::survey(const Continued& continued) {
  Survey all;
  const auto deadline = std::chrono::steady_clock::now() + kSurveyTimeout;
  for (const auto& promoter : promoters_) {
    const auto inventory = promoter->wait_inventory(deadline);
    if (!inventory) continue;
    all.newest_attempt = std::max(all.newest_attempt, inventory->newest_attempt);
    const Adoption adoption = adopt_from(*inventory, source_.local, source_.root, 0, continued);
    all.adoption.adopted.insert(all.adoption.adopted.end(), adoption.adopted.begin(), adoption.adopted.end());
    all.adoption.set_aside.insert(all.adoption.set_aside.end(), adoption.set_aside.begin(), adoption.set_aside.end());
  }
  return all;
}

void Promotions::begin_attempt(const Attempt& attempt, std::optional<std::uint64_t> continued) {
  for (const auto& promoter : promoters_) promoter->backlog().begin_attempt(attempt, continued);
}

void Promotions::add(const VersionName& version) {
  for (const auto& promoter : promoters_) promoter->backlog().add(version);
}

Status Promotions::note_delete(const VersionName& version, const std::string& run) {
  for (const auto& promoter : promoters_)
    SW_TRY(write_delete_note(source_.local, source_.root, note_for(*promoter, version, run)));
  return {};
}

void Promotions::remove(const VersionName& version, const std::string& run) {
  for (const auto& promoter : promoters_) promoter->backlog().remove(note_for(*promoter, version, run));
}

void Promotions::hear_deletes(const std::vector<DeleteNote>& notes) {
  for (const auto& promoter : promoters_) promoter->hear_deletes(notes);
}

std::vector<DeleteNote> Promotions::deletes() const {
  std::vector<DeleteNote> all;
  for (const auto& promoter : promoters_) {
    const std::vector<DeleteNote> notes = promoter->backlog().removing();
    all.insert(all.end(), notes.begin(), notes.end());
  }
  return all;
}

std::set<VersionName> Promotions::held() const {
  std::set<VersionName> all;
  for (const auto& promoter : promoters_) all.merge(promoter->backlog().held());
  return all;
}

// Those that wait, and the one that is being copied.
std::uint64_t Promotions::most_held() const {
  std::uint64_t most = 0;
  for (const auto& promoter : promoters_) most += promoter->tier().options().backlog + 1;
  return most;
}

std::vector<TierStatus> Promotions::status() const {
  std::vector<TierStatus> all;
  for (const auto& promoter : promoters_) all.push_back(promoter->backlog().status());
  return all;
}

Status Promotions::wait_idle(std::optional<std::chrono::steady_clock::time_point> deadline,
                             std::chrono::milliseconds idle_limit) const {
  std::string left;
  std::string refused;
  for (const auto& promoter : promoters_) {
    const bool idle = promoter->backlog().wait_idle(deadline, idle_limit);
    if (const auto refusal = promoter->backlog().refusal()) {
      refused += fmt::format("{}{}", refused.empty() ? "" : "; ", refusal->to_string());
      continue;
    }
    if (idle) continue;
    const TierStatus status = promoter->backlog().status();
    const std::string steps = fmt::format("{}", fmt::join(status.waiting, ", "));
    std::vector<std::uint64_t> removing;
    for (const DeleteNote& note : promoter->backlog().removing()) removing.push_back(note.version.step);
    std::string what;
    if (!steps.empty()) {
      what = fmt::format("steps {} were not copied to {}; they stay on tier 0 and the next run copies them", steps,
                         status.location);
    }
    if (!removing.empty()) {
      what += fmt::format("{}steps {} were deleted, but not on {} yet; the next run deletes them there",
                          what.empty() ? "" : "; ", fmt::join(removing, ", "), status.location);
    }
    if (what.empty()) what = fmt::format("{} does not respond", status.location);
    if (!status.last_error.empty()) what += fmt::format(" ({})", status.last_error);
    left += fmt::format("{}{}", left.empty() ? "" : "; ", what);
  }
  if (!refused.empty()) {
    return fail(ErrorKind::kAborted,
                fmt::format("checkpoints were not copied: {}{}{}", refused, left.empty() ? "" : "; ", left),
                source_.root);
  }
  if (left.empty()) return {};
  return fail(ErrorKind::kTimeout, std::move(left), source_.root);
}

}  // namespace slackwater
