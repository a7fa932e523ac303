// SessionMessages: what Rendezvous needs of a transport before this rank belongs to a session: to find, open and enter
// sessions, and to exchange messages in a session that it names.
// Implemented by KeyValueTransport. Thread rule: as for RankTransport::rendezvous(), one thread at a time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ranks/rank_transport.hpp"
#include "slackwater/error.hpp"

namespace slackwater {

class SessionMessages {
 public:
  // A store has at most one session. In a directory, earlier starts may have left sessions behind.
  [[nodiscard]] virtual Result<std::vector<std::string>> list_sessions() = 0;
  [[nodiscard]] virtual Status open_session(const RankTransport::Member& leader) = 0;
  virtual void enter(const std::string& session) = 0;  // from now on it is this rank's session
  // Passes the messages that are there now to `take`, and erases their senders from `ranks`. False: `take` returned
  // false.
  [[nodiscard]] virtual Result<bool> collect(const std::string& session, const Topic& topic,
                                             std::vector<std::uint32_t>& ranks, const RankTransport::Take& take) = 0;
  [[nodiscard]] virtual Status publish_in(const std::string& session, const Topic& topic, std::uint32_t rank,
                                          const Message& message) = 0;
  virtual void withdraw(const std::string& session, const Topic& topic, std::uint32_t rank) = 0;
  [[nodiscard]] virtual bool over_directory() const = 0;

 protected:
  ~SessionMessages() = default;
};

}  // namespace slackwater
