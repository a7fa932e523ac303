#include "commit/gathering.hpp"

#include <fmt/format.h>

#include "base/result.hpp"
#include "commit/fields.hpp"

namespace slackwater {

Topic joins_topic() { return {.box = "joins"}; }
Topic roster_topic() { return {.box = "roster"}; }

Json join_body(const Coordinator::Member& self) {
  return {{"id", self.id}, {"world", self.world}, {"fan_in", self.fan_in}};
}

Result<std::string> read_join(const Json& body, std::uint32_t rank, const Coordinator::Member& leader,
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

Json roster_body(const std::vector<std::string>& members) { return {{"members", members}}; }

Json refusal_body(const Error& error) { return {{"members", Json::array()}, {"refused", error.message}}; }

Result<std::vector<std::string>> read_roster(const Json& body, const std::string& where) {
  if (const auto why = json_string(body, "refused", "roster")) return fail(ErrorKind::kMismatch, *why, where);
  const auto list = json_array(body, "members", "roster");
  std::vector<std::string> members;
  if (!list) return members;
  for (const Json& member : **list) members.push_back(member.is_string() ? member.get<std::string>() : "");
  return members;
}

Error not_joined(const std::vector<std::uint32_t>& missing, std::uint32_t world, const std::string& where) {
  return {ErrorKind::kTimeout,
          fmt::format("{} of {} did not join in time; open the same directory in the same way on all ranks and call "
                      "save() and restore() on each of them, not on rank 0 alone, or raise commit_timeout",
                      name_ranks(missing), world),
          where, 0, true};
}

Error not_taken_in(const Coordinator::Member& self, bool refused, const std::string& where) {
  return {ErrorKind::kTimeout,
          fmt::format("rank 0 did not take rank {} of {} into the run in time: {}", self.rank, self.world,
                      refused ? "the run goes on with an earlier start of this rank, or has another world size; "
                                "restart all ranks together"
                              : "start all ranks of the run together on the same directory, or raise commit_timeout"),
          where, 0, true};
}

Error session_over(const std::string& where) {
  return {ErrorKind::kAborted, "rank 0 was started anew, so this rank's run is over; restart all ranks together", where,
          0, false};
}

}  // namespace slackwater
