#include "ranks/rendezvous.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "ranks/poll.hpp"
#include "version/fields.hpp"

namespace slackwater {
namespace {

// Empty: not a membership. kMismatch: rank 0 has refused a rank, and with it the whole start.
Result<Rendezvous::Members> read_membership(const Json& body, const std::string& where) {
  if (const auto why = json_string(body, "refused", "membership")) return fail(ErrorKind::kMismatch, *why, where);
  const auto list = json_array(body, "members", "membership");
  Rendezvous::Members members;
  if (!list) return members;
  for (const Json& member : **list) members.push_back(member.is_string() ? member.get<std::string>() : "");
  return members;
}

}  // namespace

Topic joins_topic() { return {.channel = "joins"}; }
Topic membership_topic() { return {.channel = "membership"}; }

Json join_body(const RankTransport::Member& self) {
  return {{"id", self.id}, {"world", self.world}, {"fan_in", self.fan_in}};
}

Result<std::string> read_join(const Json& body, std::uint32_t rank, const RankTransport::Member& leader,
                              const std::string& where) {
  SW_ASSIGN(std::string id, json_string(body, "id", "joins"));
  SW_ASSIGN(const std::uint32_t found, json_u32(body, "world", "joins"));
  SW_ASSIGN(const std::uint32_t fan_in, json_u32(body, "fan_in", "joins"));
  if (found != leader.world) {
    return fail(ErrorKind::kMismatch,
                fmt::format("rank {} was started as one of {}, rank 0 as one of {}; start all ranks with the same "
                            "world size",
                            rank, found, leader.world),
                where);
  }
  if (fan_in != leader.fan_in) {
    return fail(
        ErrorKind::kMismatch,
        fmt::format("rank {} has fan_in {}, rank 0 has {}; set the same on all ranks", rank, fan_in, leader.fan_in),
        where);
  }
  return id;
}

Rendezvous::Rendezvous(SessionMessages& transport, const Clock& clock, std::string where)
    : transport_(transport), clock_(clock), where_(std::move(where)) {}

Result<Rendezvous::Members> Rendezvous::rendezvous(const Member& self, const Deadline& deadline) {
  self_ = self;
  return self.rank == 0 ? lead(deadline) : follow(deadline);
}

Result<Rendezvous::Members> Rendezvous::lead(const Deadline& deadline) {
  if (joined_.empty()) {
    SW_TRY(transport_.open_session(self_));
    joined_[0] = self_.id;
  }
  std::vector<std::uint32_t> missing;
  for (std::uint32_t rank = 1; rank < self_.world; ++rank) {
    if (!joined_.contains(rank)) missing.push_back(rank);
  }
  std::optional<Error> trouble;
  const auto take = [&](std::uint32_t rank, const Message& message) {
    const auto id = read_join(message.body, rank, self_, where_);
    if (id) {
      joined_[rank] = *id;
      std::erase(missing, rank);
    } else if (id.error().kind == ErrorKind::kMismatch) {
      trouble = id.error();
    }
    return !trouble;
  };
  std::vector<std::uint32_t> awaited = missing;
  for (Poll poll(clock_, deadline); !missing.empty();) {
    const auto collected = transport_.collect(self_.id, joins_topic(), awaited, take);
    if (trouble) {  // tell the ranks that have joined; they would wait for a membership that never comes
      const Json refusal = {{"members", Json::array()}, {"refused", trouble->message}};
      (void)transport_.publish_in(self_.id, membership_topic(), 0, Message(refusal));
      return fail(std::move(*trouble));
    }
    if (missing.empty()) break;
    if (!collected && collected.error().kind == ErrorKind::kAborted && !transport_.over_directory()) {
      // The last rank to leave the session before removed the key of the session with the rest. In a directory, only a
      // newer rank 0 removes a session. Then this run is over, and it must not remove the newer session in turn.
      SW_TRY(transport_.open_session(self_));
    } else if (!collected && !collected.error().retryable) {
      return fail(collected.error());
    }
    SW_ASSIGN(const bool again, poll.again());
    if (!again) return fail(collected ? not_joined(missing) : collected.error());
  }
  Members members;
  for (const auto& [rank, id] : joined_) members.push_back(id);
  Status told = transport_.publish_in(self_.id, membership_topic(), 0, Message(Json{{"members", members}}));
  if (!told && told.error().kind != ErrorKind::kAlreadyExists) return fail(std::move(told).error());
  transport_.enter(self_.id);
  return members;
}

Result<Rendezvous::Members> Rendezvous::follow(const Deadline& deadline) {
  for (Poll poll(clock_, deadline);;) {
    auto members = try_to_join();
    if (members && !members->empty()) return members;
    if (!members && !members.error().retryable) return members;
    SW_ASSIGN(const bool again, poll.again());
    if (again) continue;
    if (!members) return members;
    return fail(cannot_join_.value_or(not_taken_in()));
  }
}

Result<Rendezvous::Members> Rendezvous::try_to_join() {
  SW_ASSIGN(const std::vector<std::string> sessions, transport_.list_sessions());
  const auto gone = [&](const std::string& each) { return std::ranges::find(sessions, each) == sessions.end(); };
  std::erase_if(joined_sessions_, gone);
  for (const std::string& session : sessions) {
    if (refused_.contains(session)) continue;
    auto members = try_session(session);
    if (members && !members->empty()) return members;
    // kAborted: the session is gone by now, or another one has replaced it.
    if (!members && members.error().kind != ErrorKind::kAborted) return members;
  }
  return Members();
}

Result<Rendezvous::Members> Rendezvous::try_session(const std::string& session) {
  if (!joined_sessions_.contains(session)) {
    Status joined = transport_.publish_in(session, joins_topic(), self_.rank, Message(join_body(self_)));
    if (!joined && joined.error().kind == ErrorKind::kAlreadyExists) {
      refused_.insert(session);
      return {};
    }
    if (!joined && joined.error().kind != ErrorKind::kAborted) cannot_join_ = joined.error();
    if (!joined && transport_.over_directory()) return {};  // try again: it may be temporary, such as a full disk
    SW_TRY(std::move(joined));
    joined_sessions_.insert(session);
    cannot_join_.reset();
  }
  Result<Members> membership;
  const auto take = [&](std::uint32_t, const Message& message) {
    membership = read_membership(message.body, where_);
    return true;
  };
  std::vector<std::uint32_t> leader{0};
  if (const auto collected = transport_.collect(session, membership_topic(), leader, take); !collected) {
    if (!transport_.over_directory()) return fail(collected.error());
    joined_sessions_.erase(session);  // of an earlier start: gone now, or with a damaged membership
    return {};
  }
  SW_ASSIGN(Members members, std::move(membership));
  if (members.empty()) return members;
  if (members.size() != self_.world || members[self_.rank] != self_.id) {
    joined_sessions_.erase(session);
    refused_.insert(session);
    transport_.withdraw(session, joins_topic(), self_.rank);
    return {};
  }
  transport_.enter(session);
  return members;
}

Error Rendezvous::not_joined(const std::vector<std::uint32_t>& missing) const {
  return {ErrorKind::kTimeout,
          fmt::format("{} of {} did not join in time; open the same directory in the same way on all ranks and call "
                      "save() and restore() on each of them, not on rank 0 alone, or raise commit_timeout",
                      name_ranks(missing), self_.world),
          where_, 0, true};
}

Error Rendezvous::not_taken_in() const {
  return {ErrorKind::kTimeout,
          fmt::format("rank 0 did not take rank {} of {} into the run in time: {}", self_.rank, self_.world,
                      refused_.empty()
                          ? "start all ranks of the run together on the same directory, or raise commit_timeout"
                          : "the run has an earlier start of this rank as a member, or another world size; restart "
                            "all ranks together"),
          where_, 0, true};
}

}  // namespace slackwater
