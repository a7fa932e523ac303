#include "ranks/heartbeat_wait.hpp"

#include "base/result.hpp"

namespace slackwater {
namespace {

constexpr unsigned kPollsPerHeartbeatCheck = 8;  // polls of the awaited messages for one check of the heartbeats
constexpr int kQuarters = 4;

}  // namespace

HeartbeatWait::HeartbeatWait(Heartbeat& heartbeat, const Deadline& deadline, Duration span, Heartbeat::Relay relay)
    : heartbeat_(heartbeat),
      stop_(deadline.stop),
      span_(span),
      relays_(relay == Heartbeat::Relay::kOn),
      first_check_(heartbeat.clock().now() + heartbeat.timeout() / kQuarters) {
  poll_.emplace(heartbeat.clock(), deadline);
}

Result<bool> HeartbeatWait::again(const std::vector<std::uint32_t>& ranks) {
  // A heartbeat that this rank owes must go out even while it only waits.
  if (relays_) heartbeat_.send_owed();
  SW_ASSIGN(const bool time_is_left, poll_->again());
  // Heartbeats are checked rarely, but always once more before giving up: a rank whose heartbeat came after the last
  // check is not dead.
  const Clock& clock = heartbeat_.clock();
  const bool check = !time_is_left || (++polls_ % kPollsPerHeartbeatCheck == 0 && clock.now() >= first_check_);
  if (!check || !heartbeat_.any_new(ranks)) return time_is_left;
  // A child is busy, so this rank's parent must keep waiting too.
  if (relays_) heartbeat_.note_progress();
  poll_.emplace(clock, Deadline{clock.now() + span_, stop_});
  return true;
}

}  // namespace slackwater
