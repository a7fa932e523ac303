#include "commit/signs_of_life.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "commit/poll.hpp"

namespace slackwater {
namespace {

constexpr int kSignsInTime = 4;             // given within the time-out
constexpr unsigned kLooksBetweenSigns = 8;  // at the messages awaited, for one at the signs

}  // namespace

SignsOfLife::SignsOfLife(Coordinator& coordinator, const Clock& clock, std::uint32_t rank,
                         std::chrono::milliseconds timeout, std::uint64_t round)
    : coordinator_(coordinator),
      clock_(clock),
      rank_(rank),
      timeout_(timeout),
      round_(static_cast<std::uint32_t>(round) + 1),
      next_(clock.now() + timeout_ / kSignsInTime) {}

// A box for each rank: who waits for one does not list the signs of all.
Topic SignsOfLife::topic(std::uint32_t rank, std::uint64_t number) const {
  return {fmt::format("restore-signs-r{:05}", rank), round_, number};
}

void SignsOfLife::show() {
  const TimePoint now = clock_.now();
  owed_ = now < next_;
  if (owed_) return;
  next_ = now + timeout_ / kSignsInTime;
  // What does not get through is made up for by the next.
  (void)coordinator_.publish(topic(rank_, given_ + 1), rank_, Message(Json::object()));
  coordinator_.forget(topic(rank_, given_), rank_);
  ++given_;
}

bool SignsOfLife::seen_anew(const std::vector<std::uint32_t>& ranks) {
  bool anew = false;
  for (const std::uint32_t rank : ranks) {
    for (const auto& [from, number] : coordinator_.latest(topic(rank, 0), {rank})) {
      if (std::exchange(seen_[from], number) != number) anew = true;
    }
  }
  return anew;
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
                               const Coordinator::Take& take, bool passes_signs_on) {
  const Duration span = std::max<Duration>(patience.deadline - clock_.now(), timeout_);
  const auto take_one = [&](std::uint32_t rank, const Message& message) {
    std::erase(ranks, rank);
    return take(rank, message);
  };
  for (TimePoint deadline = patience.deadline;; deadline = clock_.now() + span) {
    Poll poll(clock_, {deadline, patience.stop});
    bool anew = false;
    for (unsigned looks = 1; !anew; ++looks) {
      auto heard = coordinator_.await(topic, ranks, {clock_.now(), patience.stop}, take_one);
      if (heard ? *heard : !heard.error().retryable) return heard;
      if (passes_signs_on && owed_) show();  // late, but before who waits for this rank gives up
      SW_ASSIGN(const bool again, poll.again());
      if (!again || looks % kLooksBetweenSigns == 0) anew = seen_anew(ranks);
      if (!again && !anew) return heard;
    }
    if (passes_signs_on) show();
  }
}

}  // namespace slackwater
