#include "commit/heartbeat_wait.hpp"

#include "base/result.hpp"

namespace slackwater {
namespace {

constexpr unsigned kLooksForHeartbeats = 8;  // at the messages awaited, for one at the heartbeats
constexpr int kQuarters = 4;

}  // namespace

HeartbeatWait::HeartbeatWait(SignsOfLife& signs, const Patience& patience, Duration span, bool passes_on)
    : signs_(signs),
      stop_(patience.stop),
      span_(span),
      passes_on_(passes_on),
      first_look_(signs.clock().now() + signs.timeout() / kQuarters) {
  poll_.emplace(signs.clock(), patience);
}

Result<bool> HeartbeatWait::again(const std::vector<std::uint32_t>& ranks) {
  if (passes_on_) signs_.show_owed();
  SW_ASSIGN(const bool time_is_left, poll_->again());
  const Clock& clock = signs_.clock();
  const bool looks = !time_is_left || (++looks_ % kLooksForHeartbeats == 0 && clock.now() >= first_look_);
  if (!looks || !signs_.seen_anew(ranks)) return time_is_left;
  if (passes_on_) signs_.show();
  poll_.emplace(clock, Patience{clock.now() + span_, stop_});
  return true;
}

}  // namespace slackwater
