// Restore messages: what ranks send each other while they restore together, and how it is written as JSON. `where`
// names the channel in errors. Plain values and pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/json.hpp"
#include "ranks/rank_transport.hpp"
#include "slackwater/error.hpp"
#include "version/names.hpp"

namespace slackwater {

struct RestoreOffer {
  std::optional<std::uint64_t> step;  // the step that the caller asked for
  std::vector<VersionName> versions;  // that this rank sees and could try
  std::optional<Error> error;         // this rank cannot even list them
};

enum class RestoreVerdict : std::uint8_t {
  kGood,
  kDamaged,  // another version may do
  kRefused,  // a problem of the caller: no other version helps
};

struct RestoreChoice {
  // kListAgain: the ranks see different versions. Each lists them again and calls list_again().
  enum class Kind : std::uint8_t { kTry, kDone, kNothing, kListAgain, kFailed };
  Kind kind = Kind::kFailed;
  VersionName version;                   // kTry: this one; kDone: the one tried last
  std::vector<std::string> damaged;      // one sentence for each version skipped so far
  std::vector<VersionName> passed_over;  // these versions
  std::uint64_t round = 0;               // of this restore
  std::uint64_t announcements = 0;       // kDone: CommitProtocol::announcements() of the leader
  Error error;                           // kFailed: the same on all ranks
  // On the leader only.
  std::vector<std::string> unseen;  // kTry: one sentence for each older version that some ranks do not see
  std::vector<VersionName> seen;    // kDone: what any rank sees, without the versions that were skipped
};

[[nodiscard]] Json offer_json(const RestoreOffer& offer);
[[nodiscard]] Result<RestoreOffer> parse_offer(const Json& json, const std::string& where);
[[nodiscard]] Json verdict_json(RestoreVerdict verdict, const Error& error);
[[nodiscard]] Result<std::pair<RestoreVerdict, Error>> parse_verdict(const Json& json, const std::string& where);
[[nodiscard]] Json choice_json(const RestoreChoice& choice);
[[nodiscard]] Result<RestoreChoice> parse_choice(const Json& json, std::uint64_t round, const std::string& where);

// The first choice of a round says which call of each rank it answers. `calls`: by rank. `missing`: ranks of which the
// leader has no call.
void add_answered_calls(Json& json, const std::map<std::uint32_t, std::uint64_t>& calls,
                        const std::vector<std::uint32_t>& missing);
[[nodiscard]] Result<std::uint64_t> answered_call(const Json& json, std::uint32_t rank, const std::string& where);

// What ranks report, by rank. Most ranks report the same, and that is sent once: thousands of equal lists of versions
// would be megabytes.
using RankReports = std::map<std::uint32_t, Json>;
[[nodiscard]] Message pack(const RankReports& reports);
void unpack(const Message& message, const std::string& where, RankReports& reports);

// The ranks of the world that are not in `ranks`, which is sorted.
[[nodiscard]] std::vector<std::uint32_t> ranks_except(const std::vector<std::uint32_t>& ranks, std::uint32_t world);

}  // namespace slackwater
