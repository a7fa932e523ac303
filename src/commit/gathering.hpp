// What ranks tell each other while they are brought together, whatever carries the messages. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.hpp"
#include "commit/coordinator.hpp"
#include "slackwater/error.hpp"

namespace slackwater {

[[nodiscard]] Topic joins_topic();
[[nodiscard]] Topic roster_topic();

[[nodiscard]] Json join_body(const Coordinator::Member& self);
// The id of the rank that joins. kMismatch: it was started with another number of ranks, or in other groups; `where` names
// the place.
[[nodiscard]] Result<std::string> read_join(const Json& body, std::uint32_t rank, const Coordinator::Member& leader,
                                            const std::string& where);
[[nodiscard]] Json roster_body(const std::vector<std::string>& members);
[[nodiscard]] Json refusal_body(const Error& error);  // in place of a roster: there will be none
// Empty: it is none. kMismatch: rank 0 has refused somebody, and with that all.
[[nodiscard]] Result<std::vector<std::string>> read_roster(const Json& body, const std::string& where);

// kTimeout, of rank 0 and of the others.
[[nodiscard]] Error not_joined(const std::vector<std::uint32_t>& missing, std::uint32_t world,
                               const std::string& where);
[[nodiscard]] Error not_taken_in(const Coordinator::Member& self, bool refused, const std::string& where);
// kAborted: the ranks were brought together anew without this one.
[[nodiscard]] Error session_over(const std::string& where);

}  // namespace slackwater
