// RankTransport: sends small messages between the ranks of one run. Messages need not survive a power cut, so they are
// not part of any version. Whatever must survive one (records, decisions) is in the version's directory.
// Owned by EngineShared. Thread rule: thread-safe. Only sw-plan, sw-commit, sw-turn and restore() may await messages.
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

// What a message is about. A rank publishes at most one message per topic.
struct Topic {
  std::string channel;        // a plain name, such as "votes-1-g0003"; a receiver polls one channel only
  std::uint32_t attempt = 0;  // 0: no attempt is claimed yet
  std::uint64_t step = 0;     // or the number of the round
};

struct Message {
  Message() = default;
  explicit Message(Json object, std::string attached = {}) : body(std::move(object)), attachment(std::move(attached)) {}
  Json body;               // an object
  std::string attachment;  // bytes that are sent as they are; JSON would parse and escape each of them
};

// How long to wait: until the deadline on the monotonic clock, or until told to stop.
struct Deadline {
  TimePoint at;
  std::stop_token stop;
};

class RankTransport {
 public:
  virtual ~RankTransport() = default;

  struct Member {
    std::uint32_t rank = 0;
    std::uint32_t world = 1;
    std::string id;            // random, new at each start of this rank
    std::uint32_t fan_in = 0;  // must be the same on all ranks, because the tree of groups follows from it
  };
  // Brings the ranks of this start together and returns the ids of the members, by rank. Every rank calls it first.
  // After a time-out it may be called again, and continues where it was. kTimeout names the missing ranks.
  [[nodiscard]] virtual Result<std::vector<std::string>> rendezvous(const Member& self, const Deadline& deadline) = 0;

  // Others see all of the message, or nothing. kAlreadyExists: this rank has already published on this topic.
  // kAborted: there was a new rendezvous without this rank, as after a restart of rank 0.
  [[nodiscard]] virtual Status publish(const Topic& topic, std::uint32_t rank, const Message& message) = 0;

  // Passes each message of these ranks to `take` once, as it arrives. True: all have arrived, or `take` returned false.
  // False: the deadline has passed. kClosed: told to stop. kAborted: as for publish(). kCorrupt: a message is there,
  // but not as it was sent.
  using Take = std::function<bool(std::uint32_t rank, const Message& message)>;
  [[nodiscard]] virtual Result<bool> await(const Topic& topic, std::vector<std::uint32_t> ranks,
                                           const Deadline& deadline, const Take& take) = 0;

  // For each of these ranks that has published in this channel under this attempt: the step of its last message, if
  // that is still there. It is a hint that may end a wait early. If it is unknown, the rank is left out.
  [[nodiscard]] virtual std::map<std::uint32_t, std::uint64_t> latest(const Topic& /*topic*/,
                                                                      const std::vector<std::uint32_t>& /*ranks*/) {
    return {};
  }

  // Removes messages that nobody will read any more. What cannot be removed stays and does no harm.
  virtual void forget(const Topic& topic, std::uint32_t rank) = 0;
  virtual void forget_before(const Topic& topic) = 0;  // in its channel, everything of earlier attempts and steps

  // This rank neither sends nor receives any more. Its messages stay for ranks that have not read them yet.
  virtual void leave() {}
};

// The text of a message. It is sealed, and names its topic, so that no message can be taken for another.
[[nodiscard]] std::string seal_message(const std::string& session, const Topic& topic, std::uint32_t rank,
                                       const Message& message);
[[nodiscard]] Result<Message> open_message(std::string_view text, const std::string& session, const Topic& topic,
                                           std::uint32_t rank, const std::string& path);

// "rank 3", "ranks 1, 4 to 7 and 12 more".
[[nodiscard]] std::string name_ranks(const std::vector<std::uint32_t>& ranks);

}  // namespace slackwater
