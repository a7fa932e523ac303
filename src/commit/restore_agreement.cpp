#include "commit/restore_agreement.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "base/units.hpp"
#include "commit/fields.hpp"

namespace slackwater {
namespace {

constexpr const char* kOffers = "restore-offers";
constexpr const char* kChoices = "restore-choices";
constexpr const char* kVerdicts = "restore-verdicts";

Json error_json(const Error& error) {
  return {{"kind", static_cast<unsigned>(error.kind)}, {"message", error.message}, {"path", error.path}};
}

Result<Error> parse_error(const Json& json, const std::string& where) {
  Error error;
  SW_ASSIGN(const std::uint32_t kind, json_u32(json, "kind", where));
  error.kind = static_cast<ErrorKind>(std::min(kind, static_cast<std::uint32_t>(ErrorKind::kInternal)));
  SW_ASSIGN(error.message, json_string(json, "message", where));
  SW_ASSIGN(error.path, json_string(json, "path", where));
  return error;
}

Json offer_json(const RestoreAgreement::Offer& offer) {
  Json versions = Json::array();
  for (const VersionName& version : offer.versions) versions.push_back(version_directory(version));
  Json json = {{"versions", std::move(versions)}};
  if (offer.step) json["step"] = *offer.step;
  if (offer.error) json["error"] = error_json(*offer.error);
  return json;
}

Result<RestoreAgreement::Offer> parse_offer(const Json& json) {
  RestoreAgreement::Offer offer;
  SW_ASSIGN(const Json* versions, json_array(json, "versions", kOffers));
  for (const Json& entry : *versions) {
    const auto version = entry.is_string() ? parse_version_directory(entry.get<std::string>()) : std::nullopt;
    if (!version) return corrupt("a rank offers something that is not a version", kOffers);
    offer.versions.push_back(*version);
  }
  if (json.contains("step")) {
    SW_ASSIGN(offer.step, json_u64(json, "step", kOffers));
  }
  if (json.contains("error")) {
    SW_ASSIGN(offer.error, parse_error(json["error"], kOffers));
  }
  return offer;
}

Json choice_json(const RestoreAgreement::Choice& choice) {
  return {{"choice", static_cast<unsigned>(choice.kind)},
          {"version", version_directory(choice.version)},
          {"damaged", choice.damaged},
          {"error", error_json(choice.error)}};
}

Result<RestoreAgreement::Choice> parse_choice(const Json& json) {
  using Choice = RestoreAgreement::Choice;
  Choice choice;
  SW_ASSIGN(const std::uint32_t kind, json_u32(json, "choice", kChoices));
  choice.kind = static_cast<Choice::Kind>(std::min(kind, static_cast<std::uint32_t>(Choice::Kind::kFailed)));
  SW_ASSIGN(const std::string name, json_string(json, "version", kChoices));
  const auto version = parse_version_directory(name);
  if (!version) return corrupt("rank 0 chose something that is not a version", kChoices);
  choice.version = *version;
  SW_ASSIGN(const Json* damaged, json_array(json, "damaged", kChoices));
  for (const Json& entry : *damaged) choice.damaged.push_back(entry.is_string() ? entry.get<std::string>() : "");
  SW_ASSIGN(const Json* error, json_object(json, "error", kChoices));
  SW_ASSIGN(choice.error, parse_error(*error, kChoices));
  return choice;
}

std::string asked_for(const std::optional<std::uint64_t>& step) {
  return step ? fmt::format("step {}", *step) : "the newest";
}

}  // namespace

RestoreAgreement::RestoreAgreement(const Fleet& fleet, Coordinator& coordinator, SignsOfLife& signs,
                                   std::uint64_t round)
    : fleet_(fleet), coordinator_(coordinator), signs_(signs), round_(round) {}

Topic RestoreAgreement::topic(std::string box) const { return {std::move(box), turn_, round_}; }

std::vector<std::uint32_t> RestoreAgreement::all_but(const std::vector<std::uint32_t>& ranks) const {
  std::vector<std::uint32_t> rest;
  for (std::uint32_t rank = 0; rank < fleet_.options().world; ++rank) {
    if (!std::ranges::binary_search(ranks, rank)) rest.push_back(rank);
  }
  return rest;
}

Result<RestoreAgreement::Words> RestoreAgreement::gather_words(const char* name, Json own) {
  const RankTree& tree = fleet_.tree();
  const std::uint32_t self = fleet_.options().rank;
  Words words;
  words[self] = std::move(own);
  const auto take = [&](std::uint32_t, const Message& message) {
    const auto said = json_array(message.body, "words", name);
    if (!said) return true;
    for (const Json& entry : **said) {
      const auto ranks = json_array(entry, "ranks", name);
      const auto word = json_object(entry, "word", name);
      if (!ranks || !word) continue;
      for (const Json& rank : **ranks) {
        if (rank.is_number_unsigned()) words[rank.get<std::uint32_t>()] = **word;
      }
    }
    return true;
  };
  const std::vector<Patience> waits = fleet_.patience_by_level({});
  for (unsigned level = 1; level <= tree.height(); ++level)
    SW_TRY(signs_.await(topic(tree.box(name, level)), tree.heard_on(level), waits[level - 1], take));
  if (fleet_.leads()) return words;

  // Most ranks say the same, and it is said once: the lists of versions of thousands would fill megabytes.
  std::map<std::string, std::vector<std::uint32_t>> alike;
  for (const auto& [rank, word] : words) alike[word.dump()].push_back(rank);
  Json said = Json::array();
  for (const auto& [text, ranks] : alike) said.push_back({{"ranks", ranks}, {"word", words[ranks.front()]}});
  SW_TRY(
      coordinator_.publish(topic(tree.box(name, tree.height() + 1)), self, Message(Json{{"words", std::move(said)}})));
  return Words{};
}

RestoreAgreement::Choice RestoreAgreement::failed(Error error) {
  return {.kind = Choice::Kind::kFailed, .version = {}, .damaged = {}, .error = std::move(error)};
}

Error RestoreAgreement::silent(const std::vector<std::uint32_t>& ranks, const char* what) const {
  return {ErrorKind::kTimeout,
          fmt::format("{} {} within {}; call restore on all ranks, or raise commit_timeout", name_ranks(ranks), what,
                      format_seconds(std::chrono::duration<double>(fleet_.options().timeout).count())),
          {},
          0,
          true};
}

Result<RestoreAgreement::Choice> RestoreAgreement::begin(const Offer& offer) {
  SW_ASSIGN(const Words words, gather_words(kOffers, offer_json(offer)));
  if (fleet_.leads()) return tell(choose(offer, words));
  return listen(6);
}

Result<RestoreAgreement::Choice> RestoreAgreement::next(Verdict verdict, const Error& error) {
  ++turn_;
  SW_ASSIGN(const Words words,
            gather_words(kVerdicts, {{"verdict", static_cast<unsigned>(verdict)}, {"error", error_json(error)}}));
  // The leader may be slower to read its own part, and then waits for the slowest.
  if (!fleet_.leads()) return listen(9);

  std::vector<std::uint32_t> heard;
  std::vector<std::string> damages;
  std::optional<Error> refusal;
  for (const auto& [rank, word] : words) {
    const auto said = json_u32(word, "verdict", kVerdicts);
    const auto why = json_object(word, "error", kVerdicts);
    auto parsed = why ? parse_error(**why, kVerdicts) : fail(why.error());
    if (!said || !parsed) continue;
    heard.push_back(rank);
    if (*said == static_cast<std::uint32_t>(Verdict::kGood)) continue;
    if (*said == static_cast<std::uint32_t>(Verdict::kDamaged)) {
      damages.push_back(fmt::format("rank {}: {}", rank, parsed->to_string()));
    } else if (!refusal) {
      parsed->message = fmt::format("rank {}: {}", rank, parsed->message);
      refusal = std::move(*parsed);
    }
  }
  if (const auto missing = all_but(heard); !missing.empty())
    return tell(failed(silent(missing, "did not say how its restore went")));
  if (refusal) return tell(failed(std::move(*refusal)));
  if (damages.empty()) {
    return tell({.kind = Choice::Kind::kDone, .version = *trying_, .damaged = damaged_, .error = {}});
  }
  damaged_.push_back(fmt::format("step {}: {}", trying_->step, fmt::join(damages, "; ")));
  return tell(pick_next());
}

Result<RestoreAgreement::Choice> RestoreAgreement::tell(Choice choice) {
  if (choice.kind == Choice::Kind::kTry) trying_ = choice.version;
  SW_TRY(coordinator_.publish(topic(kChoices), 0, Message(choice_json(choice))));
  return choice;
}

Result<RestoreAgreement::Choice> RestoreAgreement::listen(int quarters) {
  Result<Choice> choice = failed({});
  const auto take = [&](std::uint32_t, const Message& message) {
    choice = parse_choice(message.body);
    return true;
  };
  SW_ASSIGN(const bool told, signs_.listen(topic(kChoices), {0}, fleet_.patience({}, quarters), take));
  if (!told) return fail(silent({0}, "did not say which checkpoint to restore"));
  return choice;
}

// Everything that any rank sees is a candidate, so that nothing is passed over without a word.
RestoreAgreement::Choice RestoreAgreement::choose(const Offer& own, const Words& words) {
  std::map<std::uint32_t, Offer> offers;
  std::vector<std::uint32_t> heard;
  for (const auto& [rank, word] : words) {
    auto offer = parse_offer(word);
    if (!offer) continue;
    heard.push_back(rank);
    offers[rank] = std::move(*offer);
  }
  if (const auto missing = all_but(heard); !missing.empty()) return failed(silent(missing, "did not call restore"));

  std::map<VersionName, std::vector<std::uint32_t>> seen_by;
  for (auto& [rank, offer] : offers) {
    if (offer.error) {
      offer.error->message = fmt::format("rank {}: {}", rank, offer.error->message);
      return failed(std::move(*offer.error));
    }
    if (offer.step != own.step) {
      return failed({ErrorKind::kInvalidArgument,
                     fmt::format("rank {} asks for {}, rank 0 for {}; ask for the same on all ranks", rank,
                                 asked_for(offer.step), asked_for(own.step)),
                     {}});
    }
    for (const VersionName& version : offer.versions) seen_by[version].push_back(rank);
  }
  if (seen_by.empty()) return Choice{.kind = Choice::Kind::kNothing, .version = {}, .damaged = {}, .error = {}};
  for (const auto& [version, ranks] : seen_by) {
    if (ranks.size() == offers.size()) {
      to_try_.push_back(version);
    } else {
      damaged_.push_back(fmt::format("step {}: only {} of {} ranks see it", version.step, ranks.size(), offers.size()));
    }
  }
  return pick_next();
}

RestoreAgreement::Choice RestoreAgreement::pick_next() {
  if (to_try_.empty()) {
    std::string all;
    for (const std::string& damage : damaged_) all += "\n  " + damage;
    return failed({ErrorKind::kCorrupt, fmt::format("no checkpoint could be restored by all ranks:{}", all), {}});
  }
  const VersionName version = to_try_.back();
  to_try_.pop_back();
  return {.kind = Choice::Kind::kTry, .version = version, .damaged = damaged_, .error = {}};
}

}  // namespace slackwater
