// Rendezvous: how the ranks of one start come together. Rank 0 opens a session under its own random id. The others join
// every session they find with their own id. They belong to the session whose membership lists that id.
// Owned by KeyValueTransport, whose messages it uses. Thread rule: one thread at a time. Lifetime: as the transport.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/json.hpp"
#include "ranks/rank_transport.hpp"
#include "ranks/session_messages.hpp"
#include "slackwater/error.hpp"

namespace slackwater {

class Rendezvous {
 public:
  using Member = RankTransport::Member;
  using Members = std::vector<std::string>;  // ids by rank

  // `where` names the place in errors.
  Rendezvous(SessionMessages& transport, const Clock& clock, std::string where);

  // As RankTransport::rendezvous().
  [[nodiscard]] Result<Members> rendezvous(const Member& self, const Deadline& deadline);
  // A session that this rank has joined and that has not refused it. Empty: none.
  [[nodiscard]] std::string joined_session() const { return joined_sessions_.empty() ? "" : *joined_sessions_.begin(); }

 private:
  [[nodiscard]] Result<Members> lead(const Deadline& deadline);
  [[nodiscard]] Result<Members> follow(const Deadline& deadline);
  // Joins the sessions that are there, and looks for a membership that lists this rank. Empty: not yet.
  [[nodiscard]] Result<Members> try_to_join();
  [[nodiscard]] Result<Members> try_session(const std::string& session);
  [[nodiscard]] Error not_joined(const std::vector<std::uint32_t>& missing) const;
  [[nodiscard]] Error not_taken_in() const;

  SessionMessages& transport_;
  const Clock& clock_;
  const std::string where_;

  Member self_;
  std::map<std::uint32_t, std::string> joined_;  // on rank 0: the ids of the ranks that have joined
  std::set<std::string> joined_sessions_;
  std::set<std::string> refused_;     // sessions that have another process as this rank
  std::optional<Error> cannot_join_;  // why the last attempt to join a session failed
};

[[nodiscard]] Topic joins_topic();
[[nodiscard]] Topic membership_topic();

[[nodiscard]] Json join_body(const RankTransport::Member& self);
// The id of the rank that joins. kMismatch: it was started with another world size or another fan_in.
[[nodiscard]] Result<std::string> read_join(const Json& body, std::uint32_t rank, const RankTransport::Member& leader,
                                            const std::string& where);

}  // namespace slackwater
