#include "ranks/heartbeat.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "ranks/heartbeat_wait.hpp"

namespace slackwater {
namespace {

constexpr int kHeartbeatsPerTimeout = 4;  // at most

}  // namespace

Heartbeat::Heartbeat(RankTransport& transport, const Clock& clock, Options options)
    : transport_(transport), clock_(clock), options_(std::move(options)) {
  begin();
}

// Each rank has a channel of its own, so that whoever waits for one rank does not list the heartbeats of all.
Topic Heartbeat::topic(std::uint32_t rank, std::uint64_t number) const {
  // The attempt in a topic must not be 0: a store does not remember the latest message under that.
  return {fmt::format("{}-r{:05}", options_.channel, rank), static_cast<std::uint32_t>(options_.round) + 1, number};
}

void Heartbeat::begin() {
  next_ = clock_.now() + options_.timeout / kHeartbeatsPerTimeout;
  owed_ = false;
}

bool Heartbeat::due() const { return clock_.now() >= next_; }

void Heartbeat::note_progress() {
  // Progress that comes too early is not lost: a rank that makes progress once and then waits for its disk would
  // otherwise seem dead a quarter of the time-out too soon.
  owed_ = !due();
  if (owed_) return;
  next_ = clock_.now() + options_.timeout / kHeartbeatsPerTimeout;
  // If this one does not get through, the next one makes up for it.
  (void)transport_.publish(topic(options_.rank, sent_ + 1), options_.rank, Message(Json::object()));
  // The new one is published before the old one is removed: a reader in between must always find one.
  if (std::exchange(published_, true)) transport_.forget(topic(options_.rank, sent_), options_.rank);
  ++sent_;
}

void Heartbeat::send_owed() {
  if (owed_) note_progress();
}

void Heartbeat::withdraw() {
  owed_ = false;
  if (std::exchange(published_, false)) transport_.forget(topic(options_.rank, sent_), options_.rank);
}

bool Heartbeat::any_new(const std::vector<std::uint32_t>& ranks) {
  bool any = false;
  for (const std::uint32_t rank : ranks) {
    for (const auto& [from, number] : transport_.latest(topic(rank, 0), {rank})) {
      // The number decides, not the presence: an old heartbeat of a rank that died stays readable.
      Seen& seen = seen_[from];
      if (number <= seen.number) continue;
      seen = {number, clock_.now()};
      any = true;
    }
  }
  if (any) options_.on_seen();
  return any;
}

void Heartbeat::note_sent(std::uint32_t rank, std::uint64_t number) {
  Seen& seen = seen_[rank];
  seen.number = std::max(seen.number, number);
}

std::optional<TimePoint> Heartbeat::last_seen(std::uint32_t rank) const {
  const auto seen = seen_.find(rank);
  return seen == seen_.end() ? std::nullopt : seen->second.at;
}

Result<bool> Heartbeat::await(const Topic& topic, std::vector<std::uint32_t> ranks, const Deadline& deadline,
                              const RankTransport::Take& take, Relay relay) {
  // Only ranks whose message is missing can extend the wait.
  const auto take_one = [&](std::uint32_t rank, const Message& message) {
    std::erase(ranks, rank);
    return take(rank, message);
  };
  const Duration span = std::max<Duration>(deadline.at - clock_.now(), options_.timeout);
  for (HeartbeatWait wait(*this, deadline, span, relay);;) {
    // Messages are polled, not awaited: heartbeats must be looked at in between. A retryable error is an answer only if
    // the time runs out with it.
    auto received = transport_.await(topic, ranks, {clock_.now(), deadline.stop}, take_one);
    if (received ? *received : !received.error().retryable) return received;
    SW_ASSIGN(const bool again, wait.again(ranks));
    if (!again) return received;
  }
}

}  // namespace slackwater
