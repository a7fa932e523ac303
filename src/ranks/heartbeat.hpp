// Heartbeat: tells a busy rank from a dead one. When ranks save or restore, one may write or read for minutes longer
// than another. As long as it makes progress, it sends a heartbeat now and then, on a channel of its own, and whoever
// waits for it keeps waiting. The thread that makes the progress sends the heartbeat. There is no separate thread for
// it, so a rank whose storage hangs sends none. Work that ends within a quarter of the time-out needs no heartbeat.
// Made for one restore (owned by RestoreProtocol), or for all the steps that a rank saves (owned by CommitProtocol).
// Thread rule: one thread at a time (restore: the trainer's; save: sw-commit). Lifetime: what it is given outlives it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "os/clock.hpp"
#include "ranks/rank_transport.hpp"
#include "slackwater/error.hpp"

namespace slackwater {

class Heartbeat {
 public:
  struct Options {
    std::uint32_t rank = 0;
    std::chrono::milliseconds timeout{60'000};  // how long to wait for a rank after its last heartbeat
    std::string channel;                        // such as "restore-heartbeats"; each rank's number is appended
    std::uint64_t round = 0;                    // heartbeats of other rounds are ignored
    std::function<void()> on_seen = [] {};      // called when another rank has made progress
  };
  // Whether this rank sends a heartbeat for each one that it sees while it waits. It does if somebody waits for this
  // rank in turn.
  enum class Relay : std::uint8_t { kOn, kOff };

  Heartbeat(RankTransport& transport, const Clock& clock, Options options);

  // New work begins. The next heartbeat is not sent before a quarter of the time-out has passed.
  void begin();
  // This rank has made progress. Cheap: sends at most one heartbeat per quarter of the time-out. If it is too early for
  // one, a heartbeat is owed.
  void note_progress();
  void send_owed();  // sends the heartbeat that is owed, if any, once it is due
  void drop_owed() { owed_ = false; }
  [[nodiscard]] bool due() const;  // note_progress() would send one
  void withdraw();                 // the work is over: removes the last heartbeat, if there is one
  [[nodiscard]] std::uint64_t sent() const { return sent_; }  // so far; also the number of the last one

  // Whether one of these ranks has sent a heartbeat since the last call.
  [[nodiscard]] bool any_new(const std::vector<std::uint32_t>& ranks);
  // Heartbeats of this rank up to this number are not new any more.
  void note_sent(std::uint32_t rank, std::uint64_t number);
  // When the last heartbeat of this rank was seen here.
  [[nodiscard]] std::optional<TimePoint> last_seen(std::uint32_t rank) const;

  // Like RankTransport::await(), but the wait starts again whenever one of the missing ranks sends a heartbeat.
  // Relay::kOff is for a rank that has sent all its messages. Thousands of ranks wait like this at once. Whoever waits
  // for a message of theirs that got lost must not take them for busy.
  [[nodiscard]] Result<bool> await(const Topic& topic, std::vector<std::uint32_t> ranks, const Deadline& deadline,
                                   const RankTransport::Take& take, Relay relay = Relay::kOn);

  [[nodiscard]] const Clock& clock() const { return clock_; }
  [[nodiscard]] Duration timeout() const { return options_.timeout; }

 private:
  struct Seen {
    std::uint64_t number = 0;
    std::optional<TimePoint> at;  // on the clock of this process; nullopt: known only from note_sent()
  };
  [[nodiscard]] Topic topic(std::uint32_t rank, std::uint64_t number) const;

  RankTransport& transport_;
  const Clock& clock_;
  const Options options_;

  TimePoint next_;          // no heartbeat is sent before this
  bool owed_ = false;       // there was progress before that
  bool published_ = false;  // the last heartbeat has not been removed
  std::uint64_t sent_ = 0;
  std::map<std::uint32_t, Seen> seen_;  // by rank
};

}  // namespace slackwater
