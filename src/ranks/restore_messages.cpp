#include "ranks/restore_messages.hpp"

#include <algorithm>
#include <utility>

#include "base/result.hpp"
#include "version/fields.hpp"

namespace slackwater {
namespace {

Json error_json(const Error& error) {
  return {{"kind", static_cast<unsigned>(error.kind)},
          {"message", error.message},
          {"path", error.path},
          {"tensor", error.tensor},
          {"retryable", error.retryable}};
}

Result<Error> parse_error(const Json& json, const std::string& where) {
  Error error;
  SW_ASSIGN(const Json* object, json_object(json, "error", where));
  SW_ASSIGN(const std::uint32_t kind, json_u32(*object, "kind", where));
  error.kind = static_cast<ErrorKind>(std::min(kind, static_cast<std::uint32_t>(ErrorKind::kInternal)));
  SW_ASSIGN(error.message, json_string(*object, "message", where));
  SW_ASSIGN(error.path, json_string(*object, "path", where));
  SW_ASSIGN(error.tensor, json_string(*object, "tensor", where));
  error.retryable = object->contains("retryable") && (*object)["retryable"] == true;
  return error;
}

}  // namespace

Json offer_json(const RestoreOffer& offer) {
  Json json = {{"versions", version_names(offer.versions)}};
  if (offer.step) json["step"] = *offer.step;
  if (offer.error) json["error"] = error_json(*offer.error);
  return json;
}

Result<RestoreOffer> parse_offer(const Json& json, const std::string& where) {
  RestoreOffer offer;
  SW_ASSIGN(offer.versions, json_versions(json, "versions", where));
  if (json.contains("step")) {
    SW_ASSIGN(offer.step, json_u64(json, "step", where));
  }
  if (json.contains("error")) {
    SW_ASSIGN(offer.error, parse_error(json, where));
  }
  return offer;
}

Json verdict_json(RestoreVerdict verdict, const Error& error) {
  return {{"verdict", static_cast<unsigned>(verdict)}, {"error", error_json(error)}};
}

Result<std::pair<RestoreVerdict, Error>> parse_verdict(const Json& json, const std::string& where) {
  SW_ASSIGN(const std::uint32_t verdict, json_u32(json, "verdict", where));
  SW_ASSIGN(Error error, parse_error(json, where));
  const auto last = static_cast<std::uint32_t>(RestoreVerdict::kRefused);
  return std::pair(static_cast<RestoreVerdict>(std::min(verdict, last)), std::move(error));
}

Json choice_json(const RestoreChoice& choice) {
  return {{"choice", static_cast<unsigned>(choice.kind)},
          {"version", version_directory(choice.version)},
          {"damaged", choice.damaged},
          {"passed_over", version_names(choice.passed_over)},
          {"announcements", choice.announcements},
          {"error", error_json(choice.error)}};
}

Result<RestoreChoice> parse_choice(const Json& json, std::uint64_t round, const std::string& where) {
  using Kind = RestoreChoice::Kind;
  RestoreChoice choice;
  SW_ASSIGN(const std::uint32_t kind, json_u32(json, "choice", where));
  choice.kind = static_cast<Kind>(std::min(kind, static_cast<std::uint32_t>(Kind::kFailed)));
  SW_ASSIGN(const std::string name, json_string(json, "version", where));
  const auto version = parse_version_directory(name);
  if (!version) return corrupt("rank 0 chose something that is not a version", where);
  choice.version = *version;
  SW_ASSIGN(choice.damaged, json_strings(json, "damaged", where));
  SW_ASSIGN(choice.passed_over, json_versions(json, "passed_over", where));
  choice.round = round;
  SW_ASSIGN(choice.announcements, json_u64(json, "announcements", where));
  SW_ASSIGN(choice.error, parse_error(json, where));
  return choice;
}

// Nearly always, all ranks are at the same call. Its number is sent once, and the exceptions are listed.
void add_answered_calls(Json& json, const std::map<std::uint32_t, std::uint64_t>& calls,
                        const std::vector<std::uint32_t>& missing) {
  std::map<std::uint64_t, std::vector<std::uint32_t>> ranks_of;
  for (const auto& [rank, call] : calls) ranks_of[call].push_back(rank);
  const auto usual = std::ranges::max_element(ranks_of, {}, [](const auto& each) { return each.second.size(); });
  json["call"] = usual->first;
  Json others = Json::array();
  for (const auto& [call, ranks] : ranks_of) {
    if (call != usual->first) others.push_back({{"call", call}, {"ranks", ranks}});
  }
  if (!missing.empty()) others.push_back({{"call", 0}, {"ranks", missing}});  // answers none of their calls
  if (!others.empty()) json["others"] = std::move(others);
}

Result<std::uint64_t> answered_call(const Json& json, std::uint32_t rank, const std::string& where) {
  if (json.contains("others")) {
    SW_ASSIGN(const Json* others, json_array(json, "others", where));
    for (const Json& entry : *others) {
      SW_ASSIGN(const Json* ranks, json_array(entry, "ranks", where));
      if (std::ranges::find(*ranks, Json(rank)) != ranks->end()) return json_u64(entry, "call", where);
    }
  }
  return json_u64(json, "call", where);
}

Message pack(const RankReports& reports) {
  std::map<std::string, std::vector<std::uint32_t>> ranks_of;  // by the report's text
  for (const auto& [rank, report] : reports) ranks_of[report.dump()].push_back(rank);
  Json packed = Json::array();
  for (const auto& [text, ranks] : ranks_of)
    packed.push_back({{"ranks", ranks}, {"report", reports.at(ranks.front())}});
  return Message(Json{{"reports", std::move(packed)}});
}

// What cannot be read is left out, and its ranks count as missing.
void unpack(const Message& message, const std::string& where, RankReports& reports) {
  const auto packed = json_array(message.body, "reports", where);
  if (!packed) return;
  for (const Json& entry : **packed) {
    const auto ranks = json_array(entry, "ranks", where);
    const auto report = json_object(entry, "report", where);
    if (!ranks || !report) continue;
    for (const Json& rank : **ranks) {
      if (rank.is_number_unsigned()) reports[rank.get<std::uint32_t>()] = **report;
    }
  }
}

std::vector<std::uint32_t> ranks_except(const std::vector<std::uint32_t>& ranks, std::uint32_t world) {
  std::vector<std::uint32_t> rest;
  for (std::uint32_t rank = 0; rank < world; ++rank) {
    if (!std::ranges::binary_search(ranks, rank)) rest.push_back(rank);
  }
  return rest;
}

}  // namespace slackwater
