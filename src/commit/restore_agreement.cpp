#include "commit/restore_agreement.hpp"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "base/units.hpp"
#include "commit/fields.hpp"
#include "commit/poll.hpp"

namespace slackwater {
namespace {

constexpr const char* kOffers = "restore-offers";    // under the number of the rank's own call
constexpr const char* kRounds = "restore-rounds";    // the leader's first choice, under the number of its round
constexpr const char* kChoices = "restore-choices";  // the later ones
constexpr const char* kVerdicts = "restore-verdicts";
constexpr const char* kLooks = "restore-looks";  // what a rank sees when all look again

constexpr unsigned kLooksForNumbers = 8;  // under the number that is likely, for one at which numbers there are
// All look again so often, after a pause that doubles each time: in all not quite half of the time-out.
constexpr unsigned kLooksAgain = 3;
constexpr int kFirstPause = 16;  // parts of the time-out

Json error_json(const Error& error) {
  return {{"kind", static_cast<unsigned>(error.kind)},
          {"message", error.message},
          {"path", error.path},
          {"retryable", error.retryable}};
}

Result<Error> parse_error(const Json& json, const std::string& where) {
  Error error;
  SW_ASSIGN(const std::uint32_t kind, json_u32(json, "kind", where));
  error.kind = static_cast<ErrorKind>(std::min(kind, static_cast<std::uint32_t>(ErrorKind::kInternal)));
  SW_ASSIGN(error.message, json_string(json, "message", where));
  SW_ASSIGN(error.path, json_string(json, "path", where));
  error.retryable = json.contains("retryable") && json["retryable"] == true;
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
  Json passed_over = Json::array();
  for (const VersionName& version : choice.passed_over) passed_over.push_back(version_directory(version));
  return {{"choice", static_cast<unsigned>(choice.kind)},
          {"version", version_directory(choice.version)},
          {"damaged", choice.damaged},
          {"passed_over", std::move(passed_over)},
          {"announcements", choice.announcements},
          {"error", error_json(choice.error)}};
}

Result<RestoreAgreement::Choice> parse_choice(const Json& json, std::uint64_t round) {
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
  SW_ASSIGN(const Json* passed_over, json_array(json, "passed_over", kChoices));
  for (const Json& entry : *passed_over) {
    const auto passed = entry.is_string() ? parse_version_directory(entry.get<std::string>()) : std::nullopt;
    if (!passed) return corrupt("rank 0 passed over something that is not a version", kChoices);
    choice.passed_over.push_back(*passed);
  }
  choice.round = round;
  SW_ASSIGN(choice.announcements, json_u64(json, "announcements", kChoices));
  SW_ASSIGN(const Json* error, json_object(json, "error", kChoices));
  SW_ASSIGN(choice.error, parse_error(*error, kChoices));
  return choice;
}

// Which call of each rank a round answers. Nearly always the same of all, which is said once.
void add_answers(Json& json, const std::map<std::uint32_t, std::uint64_t>& calls,
                 const std::vector<std::uint32_t>& silent) {
  std::map<std::uint64_t, std::vector<std::uint32_t>> ranks_of;
  for (const auto& [rank, call] : calls) ranks_of[call].push_back(rank);
  const auto usual = std::ranges::max_element(ranks_of, {}, [](const auto& each) { return each.second.size(); });
  json["call"] = usual->first;
  Json others = Json::array();
  for (const auto& [call, ranks] : ranks_of) {
    if (call != usual->first) others.push_back({{"call", call}, {"ranks", ranks}});
  }
  if (!silent.empty()) others.push_back({{"call", 0}, {"ranks", silent}});  // none of theirs
  if (!others.empty()) json["others"] = std::move(others);
}

Result<std::uint64_t> answered_call(const Json& json, std::uint32_t rank) {
  if (json.contains("others")) {
    SW_ASSIGN(const Json* others, json_array(json, "others", kRounds));
    for (const Json& entry : *others) {
      SW_ASSIGN(const Json* ranks, json_array(entry, "ranks", kRounds));
      if (std::ranges::find(*ranks, Json(rank)) != ranks->end()) return json_u64(entry, "call", kRounds);
    }
  }
  return json_u64(json, "call", kRounds);
}

// Most ranks say the same, and it is said once: the lists of versions of thousands would fill megabytes.
Message pack(const std::map<std::uint32_t, Json>& words) {
  std::map<std::string, std::vector<std::uint32_t>> alike;
  for (const auto& [rank, word] : words) alike[word.dump()].push_back(rank);
  Json said = Json::array();
  for (const auto& [text, ranks] : alike) said.push_back({{"ranks", ranks}, {"word", words.at(ranks.front())}});
  return Message(Json{{"words", std::move(said)}});
}

void unpack(const Message& message, const char* name, std::map<std::uint32_t, Json>& words) {
  const auto said = json_array(message.body, "words", name);
  if (!said) return;
  for (const Json& entry : **said) {
    const auto ranks = json_array(entry, "ranks", name);
    const auto word = json_object(entry, "word", name);
    if (!ranks || !word) continue;
    for (const Json& rank : **ranks) {
      if (rank.is_number_unsigned()) words[rank.get<std::uint32_t>()] = **word;
    }
  }
}

std::string asked_for(const std::optional<std::uint64_t>& step) {
  return step ? fmt::format("step {}", *step) : "the newest";
}

}  // namespace

RestoreAgreement::RestoreAgreement(const Fleet& fleet, Coordinator& coordinator, const Clock& clock,
                                   RestoreCalls& calls)
    : fleet_(fleet), coordinator_(coordinator), clock_(clock), calls_(calls) {}

Topic RestoreAgreement::topic(std::string box) const { return {std::move(box), turn_, round_}; }

std::vector<std::uint32_t> RestoreAgreement::all_but(const std::vector<std::uint32_t>& ranks) const {
  std::vector<std::uint32_t> rest;
  for (std::uint32_t rank = 0; rank < fleet_.options().world; ++rank) {
    if (!std::ranges::binary_search(ranks, rank)) rest.push_back(rank);
  }
  return rest;
}

Result<bool> RestoreAgreement::look(const Topic& topic, const std::vector<std::uint32_t>& ranks,
                                    const Coordinator::Take& take) {
  if (ranks.empty()) return false;
  auto heard = coordinator_.await(topic, ranks, {clock_.now(), {}}, take);
  if (!heard && heard.error().retryable) return false;  // a later look may tell
  return heard;
}

void RestoreAgreement::came_further() {
  if (signs_) signs_->show();
}

// An offer is looked for under the number of this rank's own call first: ordinarily that is the one. Now and then this
// rank asks which number there is. One that it has heard before belongs to an earlier restore.
Status RestoreAgreement::hear_offers(const std::string& box, std::vector<std::uint32_t> ranks, const Patience& patience,
                                     Words& words) {
  std::uint64_t call = call_;
  const auto take = [&](std::uint32_t rank, const Message& message) {
    std::erase(ranks, rank);
    calls_.heard[rank] = call;
    unpack(message, kOffers, words);
    return true;
  };
  Poll poll(clock_, patience);
  for (unsigned looks = 1; !ranks.empty(); ++looks) {
    std::vector<std::uint32_t> likely = ranks;
    std::erase_if(likely, [&](std::uint32_t rank) { return calls_.heard[rank] >= call_; });
    call = call_;
    SW_TRY(look({box, 1, call}, likely, take));
    if (looks % kLooksForNumbers == 0) {
      for (const auto& [rank, newest] : coordinator_.latest({box, 1, 0}, ranks)) {
        if (newest <= calls_.heard[rank]) continue;
        call = newest;
        SW_TRY(look({box, 1, call}, {rank}, take));
      }
    }
    if (ranks.empty()) break;
    SW_ASSIGN(const bool again, poll.again());
    if (again) continue;
    std::ranges::copy(ranks, std::back_inserter(missing_));
    break;
  }
  return {};
}

Result<RestoreAgreement::Words> RestoreAgreement::gather_offers(Json own) {
  const RankTree& tree = fleet_.tree();
  const std::uint32_t self = fleet_.options().rank;
  own["call"] = call_;
  Words words{{self, std::move(own)}};
  const std::vector<Patience> waits = fleet_.patience_by_level({});
  for (unsigned level = 1; level <= tree.height(); ++level)
    SW_TRY(hear_offers(tree.box(kOffers, level), tree.heard_on(level), waits[level - 1], words));
  if (fleet_.leads()) return words;
  SW_TRY(coordinator_.publish({tree.box(kOffers, tree.height() + 1), 1, call_}, self, pack(words)));
  return Words{};
}

Result<RestoreAgreement::Words> RestoreAgreement::gather_words(const char* name, Json own) {
  const RankTree& tree = fleet_.tree();
  const std::uint32_t self = fleet_.options().rank;
  Words words{{self, std::move(own)}};
  const auto take = [&](std::uint32_t, const Message& message) {
    unpack(message, name, words);
    return true;
  };
  const std::vector<Patience> waits = fleet_.patience_by_level({});
  for (unsigned level = 1; level <= tree.height(); ++level)
    SW_TRY(signs_->await(topic(tree.box(name, level)), tree.heard_on(level), waits[level - 1], take));
  if (fleet_.leads()) return words;
  SW_TRY(coordinator_.publish(topic(tree.box(name, tree.height() + 1)), self, pack(words)));
  return Words{};
}

RestoreAgreement::Choice RestoreAgreement::failed(Error error) {
  Choice choice;
  choice.error = std::move(error);
  return choice;
}

Error RestoreAgreement::silent(const std::vector<std::uint32_t>& ranks, const char* what, int quarters) const {
  const double timeout_s = std::chrono::duration<double>(fleet_.options().timeout).count();
  return {ErrorKind::kTimeout,
          fmt::format("{} {} within {}; call restore on all ranks, equally often, or raise commit_timeout",
                      name_ranks(ranks), what, format_seconds(timeout_s * quarters / 4)),
          {},
          0,
          true};
}

// What this rank has said in a restore that it leaves before its end must not be taken for part of a later one.
Result<RestoreAgreement::Choice> RestoreAgreement::begin(const Offer& offer) {
  call_ = ++calls_.made;
  auto choice = open(offer);
  const RankTree& tree = fleet_.tree();
  if (!choice) coordinator_.forget({tree.box(kOffers, tree.height() + 1), 1, call_}, fleet_.options().rank);
  return choice;
}

Result<RestoreAgreement::Choice> RestoreAgreement::next(Verdict verdict, const Error& error) {
  ++turn_;
  auto choice = judge(verdict, error);
  const RankTree& tree = fleet_.tree();
  if (!choice) coordinator_.forget(topic(tree.box(kVerdicts, tree.height() + 1)), fleet_.options().rank);
  return choice;
}

Result<RestoreAgreement::Choice> RestoreAgreement::look_again(const Offer& offer) {
  ++turn_;
  SW_ASSIGN(const Words words, gather_words(kLooks, offer_json(offer)));
  if (!fleet_.leads()) return listen(6);
  return tell(choose(offer, words));
}

void RestoreAgreement::open_round(std::uint64_t round) {
  round_ = round;
  calls_.round = std::max(calls_.round, round);
  calls_.made = std::max(calls_.made, round);  // so that all count alike again
  signs_.emplace(
      coordinator_, clock_,
      SignsOfLife::Options{
          .rank = fleet_.options().rank, .timeout = fleet_.options().timeout, .box = "restore-signs", .round = round});
}

Result<RestoreAgreement::Choice> RestoreAgreement::open(const Offer& offer) {
  SW_ASSIGN(const Words words, gather_offers(offer_json(offer)));
  if (!fleet_.leads()) return listen_first();
  open_round(call_);
  return tell_first(choose(offer, words), words);
}

Result<RestoreAgreement::Choice> RestoreAgreement::judge(Verdict verdict, const Error& error) {
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
    return tell(failed(silent(missing, "did not say how its restore went", 4)));
  if (refusal) return tell(failed(std::move(*refusal)));
  if (damages.empty()) {
    Choice done;
    done.kind = Choice::Kind::kDone;
    done.version = *trying_;
    for (const auto& [version, ranks] : seen_by_) done.seen.push_back(version);
    return tell(std::move(done));
  }
  damaged_.push_back(fmt::format("step {}: {}", trying_->step, fmt::join(damages, "; ")));
  passed_over_.push_back(*trying_);
  seen_by_.erase(*trying_);
  return tell(pick_next());
}

Result<RestoreAgreement::Choice> RestoreAgreement::paused(Choice choice) {
  if (choice.kind != Choice::Kind::kLookAgain) return choice;
  const Duration pause = Duration(fleet_.options().timeout) / kFirstPause * (1 << looks_++);
  for (Poll poll(clock_, {clock_.now() + pause, {}});;) {
    SW_ASSIGN(const bool again, poll.again());
    if (!again) return choice;
  }
}

Result<RestoreAgreement::Choice> RestoreAgreement::tell(Choice choice) {
  choice.round = round_;
  choice.damaged = damaged_;
  choice.passed_over = passed_over_;
  choice.announcements = fleet_.announcements();
  if (choice.kind == Choice::Kind::kTry) trying_ = choice.version;
  SW_ASSIGN(choice, paused(std::move(choice)));
  SW_TRY(coordinator_.publish(topic(kChoices), 0, Message(choice_json(choice))));
  return choice;
}

Result<RestoreAgreement::Choice> RestoreAgreement::tell_first(Choice choice, const Words& words) {
  std::map<std::uint32_t, std::uint64_t> calls;
  std::vector<std::uint32_t> heard;
  for (const auto& [rank, word] : words) {
    const auto call = json_u64(word, "call", kOffers);
    if (!call) continue;
    calls[rank] = *call;
    heard.push_back(rank);
    calls_.made = std::max(calls_.made, *call);
  }
  choice.round = round_;
  if (choice.kind == Choice::Kind::kTry) trying_ = choice.version;
  SW_ASSIGN(choice, paused(std::move(choice)));
  Json body = choice_json(choice);
  add_answers(body, calls, all_but(heard));
  SW_TRY(coordinator_.publish({kRounds, 1, round_}, 0, Message(std::move(body))));
  return choice;
}

Result<RestoreAgreement::Choice> RestoreAgreement::listen(int quarters) {
  Result<Choice> choice = failed({});
  const auto take = [&](std::uint32_t, const Message& message) {
    choice = parse_choice(message.body, round_);
    return true;
  };
  SW_ASSIGN(const bool told, signs_->listen(topic(kChoices), {0}, fleet_.patience({}, quarters), take));
  if (!told) return fail(silent({0}, "did not say which checkpoint to restore", quarters));
  return choice;
}

// A round that answers another call of this rank, or none, is not meant for it.
Result<RestoreAgreement::Choice> RestoreAgreement::listen_first() {
  constexpr int kQuarters = 6;
  Json said;
  const auto take = [&](std::uint32_t, const Message& message) {
    said = message.body;
    return true;
  };
  Poll poll(clock_, fleet_.patience({}, kQuarters));
  for (unsigned looks = 1;; ++looks) {
    std::uint64_t round = std::max(calls_.round + 1, call_);  // the likely one
    if (looks % kLooksForNumbers == 0) {
      for (const auto& [rank, newest] : coordinator_.latest({kRounds, 1, 0}, {0})) {
        if (newest > calls_.round) round = newest;
      }
    }
    SW_ASSIGN(const bool told, look({kRounds, 1, round}, {0}, take));
    if (told) {
      SW_ASSIGN(const std::uint64_t answered, answered_call(said, fleet_.options().rank));
      calls_.round = round;
      if (answered != call_) continue;
      open_round(round);
      return parse_choice(said, round);
    }
    SW_ASSIGN(const bool again, poll.again());
    if (!again) break;
  }
  Error error = silent({0}, "did not say which checkpoint to restore", kQuarters);
  if (!missing_.empty())
    error.message = fmt::format("{}; {} did not call restore either", error.message, name_ranks(missing_));
  return fail(std::move(error));
}

RestoreAgreement::Choice RestoreAgreement::choose(const Offer& own, const Words& words) {
  std::map<std::uint32_t, Offer> offers;
  std::vector<std::uint32_t> heard;
  for (const auto& [rank, word] : words) {
    auto offer = parse_offer(word);
    if (!offer) continue;
    heard.push_back(rank);
    offers[rank] = std::move(*offer);
  }
  if (const auto missing = all_but(heard); !missing.empty()) return failed(silent(missing, "did not call restore", 4));

  seen_by_.clear();
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
    for (const VersionName& version : offer.versions) seen_by_[version].push_back(rank);
  }
  for (const VersionName& version : passed_over_) seen_by_.erase(version);
  return pick_next();
}

std::string RestoreAgreement::only_some_see(const VersionName& version, const std::vector<std::uint32_t>& ranks) const {
  return fmt::format(
      "step {}: only {} of {} ranks see it, {} not", version.step, ranks.size(), fleet_.options().world,
      fmt::format("{} {}", name_ranks(all_but(ranks)), ranks.size() + 1 == fleet_.options().world ? "does" : "do"));
}

// The newest that any rank sees, and no other: a version is passed over because it is damaged, never because some ranks
// do not see it, or it would be lost when the run goes on from an older one.
RestoreAgreement::Choice RestoreAgreement::pick_next() {
  Choice choice;
  if (seen_by_.empty() && damaged_.empty()) {
    choice.kind = Choice::Kind::kNothing;
    return choice;
  }
  if (seen_by_.empty()) {
    std::string all;
    for (const std::string& damage : damaged_) all += "\n  " + damage;
    return failed({ErrorKind::kCorrupt, fmt::format("no checkpoint could be restored by all ranks:{}", all), {}});
  }
  const auto& [newest, ranks] = *seen_by_.rbegin();
  if (ranks.size() == fleet_.options().world) {
    choice.kind = Choice::Kind::kTry;
    choice.version = newest;
    for (const auto& [version, seen] : seen_by_) {
      if (seen.size() != ranks.size()) choice.unseen.push_back(only_some_see(version, seen));
    }
    return choice;
  }
  if (looks_ < kLooksAgain) {
    choice.kind = Choice::Kind::kLookAgain;
    return choice;
  }
  return failed({ErrorKind::kMismatch,
                 fmt::format("{}; check that all ranks see the same directory and call restore again, or restore an "
                             "older step by its number (restore(step=...))",
                             only_some_see(newest, ranks)),
                 {},
                 0,
                 true});
}

}  // namespace slackwater
