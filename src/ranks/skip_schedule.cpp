#include "ranks/skip_schedule.hpp"

#include <algorithm>
#include <cstddef>

namespace slackwater {
namespace {

// A rank that receives a turn after this many skipped steps cannot tell which one it missed. The others then wait for
// its vote until their time-out.
constexpr std::size_t kMaxSkipped = 1u << 16;
constexpr std::chrono::seconds kMaxLead{8};
constexpr std::size_t kMaxAhead = 4096;

}  // namespace

bool SkipSchedule::take(std::uint64_t step, TimePoint now) {
  if (last_step_ && step > *last_step_) stride_ = step - *last_step_;
  last_step_ = step;
  calls_.push_back(now);
  while (calls_.size() > kMaxAhead || calls_.front() + kMaxLead < now) calls_.pop_front();
  if (!turns_.empty() && turns_.front() <= step) {
    turns_.pop_front();
    return true;
  }
  skipped_.push_back(step);
  if (skipped_.size() > kMaxSkipped) skipped_.pop_front();
  return false;
}

std::optional<std::uint64_t> SkipSchedule::add(std::uint64_t from) {
  last_turn_ = from;
  const auto missed = std::ranges::lower_bound(skipped_, from);
  if (missed == skipped_.end()) {
    skipped_.clear();  // turns ascend: none can belong to these any more
    turns_.push_back(from);
    return std::nullopt;
  }
  const std::uint64_t step = *missed;
  skipped_.erase(skipped_.begin(), std::next(missed));
  return step;
}

std::uint64_t SkipSchedule::next(TimePoint now) const {
  const auto recent = std::ranges::lower_bound(calls_, now - lead_);
  // Never the very next save: other ranks may be one ahead of this one.
  const auto saves = static_cast<std::uint64_t>(std::max<std::ptrdiff_t>(1, calls_.end() - recent));
  return std::max(last_step_.value_or(0) + saves * stride_, last_turn_) + 1;
}

void SkipSchedule::give_earlier() { lead_ = std::min<Duration>(lead_ * 2, kMaxLead); }

}  // namespace slackwater
