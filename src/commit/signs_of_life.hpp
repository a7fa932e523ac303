// SignsOfLife: heartbeats, which tell a rank that is busy from one that is gone. When ranks save or restore, one may
// write or read for minutes longer than another. As long as it makes progress it sends a heartbeat now and then, to a
// box of its own, and whoever waits for it goes on waiting. A heartbeat is sent by the thread that sees the progress,
// not by a thread beside it: a rank that hangs in its storage sends none. Work that is over within a quarter of the
// time-out needs no message. Made for one restore, or for all the steps that a rank saves. Thread rule: one thread at a
// time (restore(): the trainer's; saving: sw-commit). Lifetime: what it is given outlives it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "commit/coordinator.hpp"
#include "os/clock.hpp"
#include "slackwater/error.hpp"

namespace slackwater {

class SignsOfLife {
 public:
  struct Options {
    std::uint32_t rank = 0;
    std::chrono::milliseconds timeout{60'000};  // how long a rank is waited for after its last heartbeat
    std::string box;                        // of the messages: "restore-signs"; each rank's has its number behind it
    std::uint64_t round = 0;                // heartbeats of other rounds do not count
    std::function<void()> on_seen = [] {};  // another rank has made progress
  };
  SignsOfLife(Coordinator& coordinator, const Clock& clock, Options options);

  // New work begins now: the next heartbeat comes a quarter of the time-out later at the earliest.
  void begin();
  // This rank has made progress. Cheap: sends at most one heartbeat in a quarter of the time-out; one that comes too
  // early for that is owed.
  void show();
  void show_owed();  // once it is due
  void drop_owed() { owed_ = false; }
  [[nodiscard]] bool due() const;  // show() would send one
  void withdraw();                 // the work is over: takes back the heartbeat sent last, if there is one
  [[nodiscard]] std::uint64_t sent() const { return sent_; }  // so far; the number of the last

  // Whether one of these ranks has sent a heartbeat since the last look.
  [[nodiscard]] bool seen_anew(const std::vector<std::uint32_t>& ranks);
  // What a rank has sent up to this one is no news any more.
  void note_sent(std::uint32_t rank, std::uint64_t number);
  // When the last heartbeat of this rank was seen here.
  [[nodiscard]] std::optional<TimePoint> last_seen(std::uint32_t rank) const;

  // As Coordinator::await(). But whenever one of the ranks that have not spoken yet sends a heartbeat the wait starts
  // again, and this rank sends one too: whoever waits for it waits for them.
  [[nodiscard]] Result<bool> await(const Topic& topic, std::vector<std::uint32_t> ranks, const Patience& patience,
                                   const Coordinator::Take& take);
  // The same for a rank that has said all it has to say: nobody waits for it, so it sends no heartbeats. Thousands do
  // this at once, and whoever waits for a word of theirs that got lost must not take them for busy.
  [[nodiscard]] Result<bool> listen(const Topic& topic, std::vector<std::uint32_t> ranks, const Patience& patience,
                                    const Coordinator::Take& take);

  [[nodiscard]] const Clock& clock() const { return clock_; }
  [[nodiscard]] Duration timeout() const { return options_.timeout; }

 private:
  struct Seen {
    std::uint64_t number = 0;
    std::optional<TimePoint> at;  // by the clock of this process; none: learned otherwise
  };
  [[nodiscard]] Result<bool> wait(const Topic& topic, std::vector<std::uint32_t> ranks, const Patience& patience,
                                  const Coordinator::Take& take, bool passes_on);
  [[nodiscard]] Topic topic(std::uint32_t rank, std::uint64_t number) const;

  Coordinator& coordinator_;
  const Clock& clock_;
  const Options options_;

  TimePoint next_;          // the next heartbeat is not sent before this
  bool owed_ = false;       // there was reason for one before that
  bool there_ = false;      // the one sent last was not taken back
  std::uint64_t sent_ = 0;  // heartbeats so far
  std::map<std::uint32_t, Seen> seen_;
};

}  // namespace slackwater
