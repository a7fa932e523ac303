#include "commit/signs_of_life.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "commit/heartbeat_wait.hpp"

namespace slackwater {
namespace {

constexpr int kHeartbeatsInTime = 4;  // at most, within the time-out

}  // namespace

SignsOfLife::SignsOfLife(Coordinator& coordinator, const Clock& clock, Options options)
    : coordinator_(coordinator), clock_(clock), options_(std::move(options)) {
  begin();
}

// A box for each rank: whoever waits for one does not list the heartbeats of all.
Topic SignsOfLife::topic(std::uint32_t rank, std::uint64_t number) const {
  // No round is 0: a store keeps no trace of what was said last under that.
  return {fmt::format("{}-r{:05}", options_.box, rank), static_cast<std::uint32_t>(options_.round) + 1, number};
}

void SignsOfLife::begin() {
  next_ = clock_.now() + options_.timeout / kHeartbeatsInTime;
  owed_ = false;
}

bool SignsOfLife::due() const { return clock_.now() >= next_; }

void SignsOfLife::show() {
  owed_ = !due();
  if (owed_) return;
  next_ = clock_.now() + options_.timeout / kHeartbeatsInTime;
  // One that does not get through is made up for by the next.
  (void)coordinator_.publish(topic(options_.rank, sent_ + 1), options_.rank, Message(Json::object()));
  if (std::exchange(there_, true)) coordinator_.forget(topic(options_.rank, sent_), options_.rank);
  ++sent_;
}

void SignsOfLife::show_owed() {
  if (owed_) show();
}

void SignsOfLife::withdraw() {
  owed_ = false;
  if (std::exchange(there_, false)) coordinator_.forget(topic(options_.rank, sent_), options_.rank);
}

bool SignsOfLife::seen_anew(const std::vector<std::uint32_t>& ranks) {
  bool anew = false;
  for (const std::uint32_t rank : ranks) {
    for (const auto& [from, number] : coordinator_.latest(topic(rank, 0), {rank})) {
      Seen& seen = seen_[from];
      if (number <= seen.number) continue;
      seen = {number, clock_.now()};
      anew = true;
    }
  }
  if (anew) options_.on_seen();
  return anew;
}

void SignsOfLife::note_sent(std::uint32_t rank, std::uint64_t number) {
  Seen& seen = seen_[rank];
  seen.number = std::max(seen.number, number);
}

std::optional<TimePoint> SignsOfLife::last_seen(std::uint32_t rank) const {
  const auto seen = seen_.find(rank);
  return seen == seen_.end() ? std::nullopt : seen->second.at;
}

Result<bool> SignsOfLife::await(const Topic& topic, std::vector<std::uint32_t> ranks, const Patience& patience,
                                const Coordinator::Take& take) {
  return wait(topic, std::move(ranks), patience, take, true);
}

Result<bool> SignsOfLife::listen(const Topic& topic, std::vector<std::uint32_t> ranks, const Patience& patience,
                                 const Coordinator::Take& take) {
  return wait(topic, std::move(ranks), patience, take, false);
}

Result<bool> SignsOfLife::wait(const Topic& topic, std::vector<std::uint32_t> ranks, const Patience& patience,
                               const Coordinator::Take& take, bool passes_on) {
  const auto take_one = [&](std::uint32_t rank, const Message& message) {
    std::erase(ranks, rank);
    return take(rank, message);
  };
  const Duration span = std::max<Duration>(patience.deadline - clock_.now(), options_.timeout);
  for (HeartbeatWait wait(*this, patience, span, passes_on);;) {
    auto heard = coordinator_.await(topic, ranks, {clock_.now(), patience.stop}, take_one);
    if (heard ? *heard : !heard.error().retryable) return heard;
    SW_ASSIGN(const bool again, wait.again(ranks));
    if (!again) return heard;
  }
}

}  // namespace slackwater
