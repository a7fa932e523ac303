// Coordinator: how the ranks of one run pass small messages. Apart from the tiers: messages are no checkpoints, need
// not survive a power cut, and carry no promise; what was promised and decided lies on the tier. Owned by the Engine.
// Thread rule: thread-safe. Waiting is for sw-plan, sw-commit and restore(); nobody else may await.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "base/json.hpp"
#include "os/clock.hpp"
#include "slackwater/error.hpp"

namespace slackwater {

// What a message is about. One rank says one thing about one topic.
struct Topic {
  std::string box;            // a plain name, such as "votes-1-g0003": who looks for a message looks into one box only
  std::uint32_t attempt = 0;  // 0: none is claimed yet
  std::uint64_t step = 0;     // or the number of the round
};

struct Message {
  Message() = default;
  explicit Message(Json said, std::string attached = {}) : body(std::move(said)), attachment(std::move(attached)) {}
  Json body;               // an object
  std::string attachment;  // bytes that go along as they are: as a text in JSON each would be looked at several times
};

// How long to wait: until the deadline on the monotonic clock, or until told to stop.
struct Patience {
  TimePoint deadline;
  std::stop_token stop;
};

class Coordinator {
 public:
  virtual ~Coordinator() = default;

  struct Member {
    std::uint32_t rank = 0;
    std::uint32_t world = 1;
    std::string id;            // random, of this start of this rank
    std::uint32_t fan_in = 0;  // all must have the same: who reports to whom follows from it
  };
  // Brings the ranks of this start together and answers each member's id, by rank. Every rank calls it before anything
  // else here; after a time-out it may be called again and goes on where it was. kTimeout names the ranks that are
  // missing.
  [[nodiscard]] virtual Result<std::vector<std::string>> gather(const Member& self, const Patience& patience) = 0;

  // Everybody sees all of it, or nothing. kAlreadyExists: this rank has said something about this topic before.
  // kAborted: the ranks were brought together anew without this one, as after a restart of rank 0.
  [[nodiscard]] virtual Status publish(const Topic& topic, std::uint32_t rank, const Message& message) = 0;

  // Hands each message of these ranks to `take`, once, as they come, until all have come (true), `take` answers false
  // (true), or time has run out (false). kClosed when stopped; kAborted as for publish(); kCorrupt if a message is there,
  // but not as it was sent.
  using Take = std::function<bool(std::uint32_t rank, const Message& message)>;
  [[nodiscard]] virtual Result<bool> await(const Topic& topic, std::vector<std::uint32_t> ranks,
                                           const Patience& patience, const Take& take) = 0;

  // Of these ranks, those that have spoken in this box under this attempt: the step they spoke about last, as far as it
  // is still there. A hint that ends a wait early: where it cannot be told nothing is answered, and the time-out tells.
  [[nodiscard]] virtual std::map<std::uint32_t, std::uint64_t> latest(const Topic& /*topic*/,
                                                                      const std::vector<std::uint32_t>& /*ranks*/) {
    return {};
  }

  // Messages that nobody will ask for any more. What cannot be removed stays; it does no harm.
  virtual void forget(const Topic& topic, std::uint32_t rank) = 0;
  virtual void forget_before(const Topic& topic) = 0;  // of its box: everything of earlier attempts and earlier steps

  // This rank neither speaks nor listens any more. What it said stays for those who have not heard it yet.
  virtual void leave() {}
};

// The text of a message: sealed, and naming what it is about, so that none is taken for another.
[[nodiscard]] std::string seal_message(const std::string& session, const Topic& topic, std::uint32_t rank,
                                       const Message& message);
[[nodiscard]] Result<Message> open_message(std::string_view text, const std::string& session, const Topic& topic,
                                           std::uint32_t rank, const std::string& path);

// "rank 3", "ranks 1, 4 to 7 and 12 more".
[[nodiscard]] std::string name_ranks(const std::vector<std::uint32_t>& ranks);

}  // namespace slackwater
