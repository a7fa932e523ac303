#include "commit/fleet.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "base/digest.hpp"
#include "base/result.hpp"
#include "base/units.hpp"
#include "commit/fields.hpp"
#include "commit/names.hpp"
#include "commit/poll.hpp"
#include "os/durable.hpp"

namespace slackwater {
namespace {

constexpr std::string_view kCommitted = "commit";
constexpr std::string_view kGivenUp = "abort";
constexpr std::string_view kDoubtful = "in-doubt";
constexpr unsigned kLooksBetween = 8;  // at the messages awaited, for one at what would make them pointless

Topic turns(std::uint32_t attempt, std::uint64_t number) { return {"turns", attempt, number}; }
Topic reports(const VersionName& version) { return {"reports", version.attempt, version.step}; }
Topic outcomes(const VersionName& version) { return {"outcomes", version.attempt, version.step}; }

std::string instead(std::uint64_t step) {
  return fmt::format("saved step {} instead; save the same steps on all ranks", step);
}

// Whether there is a record of every rank, and its part of the index; both are in the order of the ranks.
bool speaks_for_all(const Ballot& ballot, std::uint32_t world) {
  if (ballot.records.size() != world || ballot.index_parts.size() != world) return false;
  for (std::uint32_t rank = 0; rank < world; ++rank) {
    if (ballot.records[rank].rank != rank || ballot.index_parts[rank].rank != rank) return false;
  }
  return true;
}

std::string seconds_text(std::chrono::milliseconds time) {
  return format_seconds(std::chrono::duration<double>(time).count());
}

Result<Outcome> parse_outcome(const Json& body) {
  constexpr const char* kWhere = "outcomes";
  SW_ASSIGN(const std::string decision, json_string(body, "decision", kWhere));
  if (decision == kCommitted) return Outcome{};
  Error error;
  error.kind = decision == kGivenUp ? ErrorKind::kAborted : ErrorKind::kInDoubt;
  SW_ASSIGN(error.message, json_string(body, "message", kWhere));
  SW_ASSIGN(error.path, json_string(body, "path", kWhere));
  return Outcome{std::move(error)};
}

}  // namespace

Error aborted_everywhere(std::uint64_t step, const std::string& reason, const std::string& path) {
  return {ErrorKind::kAborted, fmt::format("step {} was aborted on all ranks: {}", step, reason), path};
}

Fleet::Fleet(const FleetOptions& options, Coordinator& coordinator, FileSystem& fs, const Clock& clock)
    : options_(options), coordinator_(coordinator), fs_(fs), clock_(clock), id_(random_id()) {}

Patience Fleet::patience(const std::stop_token& stop, int quarters) const {
  return {clock_.now() + options_.timeout * quarters / 4, stop};
}

Topic Fleet::votes(const VersionName& version) const { return {group_box("votes"), version.attempt, version.step}; }

std::string Fleet::group_box(std::string_view name) const {
  return fmt::format("{}-g{:04}", name, options_.rank / options_.fan_in);
}

std::vector<std::uint32_t> Fleet::group_without_speaker() const {
  const std::uint32_t speaker = options_.rank - options_.rank % options_.fan_in;
  std::vector<std::uint32_t> ranks;
  for (std::uint32_t rank = speaker + 1; rank < options_.world && rank - speaker < options_.fan_in; ++rank)
    ranks.push_back(rank);
  return ranks;
}

std::vector<std::uint32_t> Fleet::speakers_of_other_groups() const {
  std::vector<std::uint32_t> ranks;
  for (std::uint64_t rank = options_.fan_in; rank < options_.world; rank += options_.fan_in)
    ranks.push_back(static_cast<std::uint32_t>(rank));
  return ranks;
}

Result<std::vector<std::string>> Fleet::gather(const std::stop_token& stop) {
  if (members_.empty()) {
    SW_ASSIGN(members_, coordinator_.gather({options_.rank, options_.world, id_}, patience(stop, leads() ? 4 : 5)));
  }
  return members_;
}

// Each announcement has a topic of its own, in the order they were made.
Topic Fleet::attempt_topic(std::uint64_t epoch) {
  if (epoch != std::exchange(epoch_, epoch)) refusals_ = 0;
  return {.box = "attempts", .attempt = refusals_, .step = epoch};
}

Status Fleet::announce_attempt(std::uint64_t epoch, std::uint64_t step, const Result<Attempt>& attempt) {
  const std::uint32_t number = attempt ? attempt->number : 0;
  const Json body = {
      {"step", step}, {"number", number}, {"refusal", attempt ? std::string() : attempt.error().to_string()}};
  for (;;) {
    const Status told = coordinator_.publish(attempt_topic(epoch), 0, body);
    if (told) break;
    if (told.error().kind != ErrorKind::kAlreadyExists) return told;
    // An earlier announcement got through though it did not look so. The same attempt is told then; behind a refusal
    // comes the next announcement.
    Json said = Json::object();
    const auto take = [&](std::uint32_t, const Json& earlier) {
      said = earlier;
      return true;
    };
    SW_ASSIGN(const bool heard, look(attempt_topic(epoch), {0}, {}, take));
    SW_ASSIGN(const std::uint32_t known, heard ? json_u32(said, "number", "attempts") : fail(told.error()));
    if (known != 0) return known == number ? Status() : told;
    ++refusals_;
  }
  if (!attempt) ++refusals_;
  return {};
}

Result<std::uint32_t> Fleet::await_attempt(std::uint64_t epoch, std::uint64_t step, const std::stop_token& stop) {
  constexpr const char* kWhere = "attempts";
  Json said;
  const auto take = [&](std::uint32_t, const Json& body) {
    said = body;
    return true;
  };
  const Patience waits = patience(stop, 5);
  for (;;) {
    SW_ASSIGN(const bool told, coordinator_.await(attempt_topic(epoch), {0}, waits, take));
    if (!told) break;
    SW_ASSIGN(const std::uint32_t number, json_u32(said, "number", kWhere));
    if (number != 0) return number;
    SW_ASSIGN(const std::uint64_t refused, json_u64(said, "step", kWhere));
    SW_ASSIGN(const std::string refusal, json_string(said, "refusal", kWhere));
    if (refused <= step) ++refusals_;
    if (refused < step) continue;  // a step that this rank did not save
    return fail(aborted_everywhere(step, fmt::format("rank 0: {}", refusal), {}));
  }
  return fail(Error{ErrorKind::kTimeout,
                    fmt::format("rank 0 has not begun to save within {}; save the same steps on all ranks",
                                seconds_text(options_.timeout * 5 / 4)),
                    {},
                    0,
                    true});
}

Result<bool> Fleet::look(const Topic& topic, const std::vector<std::uint32_t>& ranks, const std::stop_token& stop,
                         const Coordinator::Take& take) {
  auto heard = coordinator_.await(topic, ranks, {clock_.now(), stop}, take);
  if (!heard && heard.error().retryable) return false;  // a later look may tell
  return heard;
}

Result<bool> Fleet::settled(const VersionName& version, const std::string& directory, const std::stop_token& stop) {
  // Any rank may have written an abort; of its own decision the leader need not be told.
  if (!directory.empty() && fs_.status(fmt::format("{}/{}", directory, kManifestName))) return true;
  if (leads()) return false;
  return look(outcomes(version), {0}, stop, [](std::uint32_t, const Json&) { return true; });
}

Status Fleet::add(Ballot& ballot, const Topic& topic, std::vector<std::uint32_t> ranks, const std::string& directory,
                  const Patience& patience, const std::string& silence) {
  const auto take = [&](std::uint32_t rank, const Json& body) {
    std::erase(ranks, rank);
    auto said = parse_ballot(body, topic.box, options_.files);
    if (said) {
      merge(ballot, std::move(*said));
    } else {
      ballot.failures.push_back({rank, said.error().message});
    }
    return ballot.failures.empty();
  };
  if (ranks.empty()) return {};
  Poll poll(clock_, patience);
  for (unsigned looks = 1;; ++looks) {
    const bool look_around = looks % kLooksBetween == 0;
    // Before the look at the messages themselves: a rank speaks of its steps in their order.
    const auto elsewhere = look_around ? coordinator_.latest(topic, ranks) : std::map<std::uint32_t, std::uint64_t>();
    SW_ASSIGN(const bool heard, look(topic, ranks, patience.stop, take));
    if (heard) return {};
    for (const std::uint32_t rank : ranks) {
      const auto last = elsewhere.find(rank);
      if (last == elsewhere.end()) continue;
      if (last->second > topic.step) ballot.failures.push_back({rank, instead(last->second)});
      if (last->second < topic.step) release({last->second, topic.attempt}, topic.step);
    }
    if (!ballot.failures.empty()) return {};
    if (look_around) {
      SW_ASSIGN(const bool over, settled({topic.step, topic.attempt}, directory, patience.stop));
      for (const std::uint32_t rank : over ? ranks : std::vector<std::uint32_t>())
        ballot.failures.push_back({rank, "had not reported when the step was given up"});
      if (over) return {};
    }
    SW_ASSIGN(const bool again, poll.again());
    if (again) continue;
    for (const std::uint32_t rank : ranks) ballot.failures.push_back({rank, silence});
    return {};
  }
}

// The leader says so itself; the speaker of a group says it to the leader, who waits for it there, or passes it on.
void Fleet::release(const VersionName& left_out, std::uint64_t saved_instead) {
  if (!spoken_.insert(left_out).second) return;
  const std::string why = instead(saved_instead);
  // What does not get through is found out after the time-out.
  if (leads()) {
    (void)tell(left_out, {aborted_everywhere(left_out.step, fmt::format("rank 0: {}", why), {})});
  } else {
    (void)coordinator_.publish(reports(left_out), options_.rank, to_json(Ballot{.failures = {{options_.rank, why}}}));
  }
}

// What a rank has promised must be there for others too, not only in its own host's cache.
Status Fleet::check_records(const VersionName& version, Ballot& ballot, const std::string& directory,
                            const Patience& patience) {
  for (const RecordReference& record : ballot.records) {
    if (record.rank == options_.rank) continue;
    const std::string path = fmt::format("{}/{}", directory, record.file);
    for (Poll poll(clock_, patience);;) {  // a shared file system may show it a little later
      const auto text = read_whole(fs_, path, kMaxRecordBytes);
      if (text && digest128(*text) == record.digest) break;
      // After an abort its rank has taken it away.
      SW_ASSIGN(const bool over, settled(version, directory, patience.stop));
      if (over) {
        ballot.failures.push_back({record.rank, "its record went when the step was given up"});
        return {};
      }
      SW_ASSIGN(const bool again, poll.again());
      if (again) continue;
      ballot.failures.push_back({record.rank, fmt::format("its record, as rank {} finds it, is not the one it wrote{}",
                                                          options_.rank, text ? "" : ": " + text.error().message)});
      return {};
    }
  }
  return {};
}

Result<Ballot> Fleet::vote(const VersionName& version, const std::string& directory, Ballot own,
                           const std::stop_token& stop) {
  spoken_.insert(version);
  if (!speaks()) {
    SW_TRY(coordinator_.publish(votes(version), options_.rank, to_json(own)));
    return Ballot{};
  }

  Ballot all = std::move(own);
  // Both from now on: the others wait for the outcome only a little longer, however late a ballot of this group comes.
  const Patience waits = patience(stop);
  const Patience waits_for_reports = patience(stop, 5);
  if (all.failures.empty()) {
    SW_TRY(add(
        all, votes(version), group_without_speaker(), directory, waits,
        fmt::format("did not report within {}: late, dead, or saving another step", seconds_text(options_.timeout))));
    if (all.failures.empty()) SW_TRY(check_records(version, all, directory, waits));
  }
  if (!leads()) {
    SW_TRY(coordinator_.publish(reports(version), options_.rank, to_json(all)));
    return Ballot{};
  }

  if (all.failures.empty()) {
    SW_TRY(add(all, reports(version), speakers_of_other_groups(), directory, waits_for_reports,
               fmt::format("did not report within {} for its group of {}: late, dead, or saving another step",
                           seconds_text(options_.timeout * 5 / 4), options_.fan_in)));
  }
  if (all.failures.empty() && !speaks_for_all(all, options_.world)) {
    return fail(ErrorKind::kMismatch,
                fmt::format("{} records came for {} ranks, not one of each; set the same fan_in on all ranks",
                            all.records.size(), options_.world),
                directory);
  }
  return all;
}

Status Fleet::tell(const VersionName& version, const Outcome& outcome) {
  Json body = {{"decision", kCommitted}, {"message", ""}, {"path", ""}};
  if (outcome.error) {
    body = {{"decision", outcome.error->kind == ErrorKind::kInDoubt ? kDoubtful : kGivenUp},
            {"message", outcome.error->message},
            {"path", outcome.error->path}};
  }
  return coordinator_.publish(outcomes(version), 0, body);
}

Status Fleet::announce(const VersionName& version, const Outcome& outcome) {
  SW_TRY(tell(version, outcome));
  coordinator_.forget_before(votes(version));
  coordinator_.forget_before(reports(version));
  // Everybody voted for this step, and so knows how those before it ended.
  if (!outcome.error) {
    coordinator_.forget_before(outcomes(version));
    spoken_.erase(spoken_.begin(), spoken_.find(version));
  }
  return {};
}

Result<std::optional<Outcome>> Fleet::await_outcome(const VersionName& version, const std::stop_token& stop) {
  std::optional<Outcome> outcome;
  const auto take = [&](std::uint32_t, const Json& body) {
    if (auto parsed = parse_outcome(body)) outcome = std::move(*parsed);
    return true;
  };
  Poll poll(clock_, patience(stop, 6));
  for (unsigned looks = 1;; ++looks) {
    const auto elsewhere = looks % kLooksBetween == 0 ? coordinator_.latest(outcomes(version), {0})
                                                      : std::map<std::uint32_t, std::uint64_t>();
    SW_ASSIGN(const bool told, look(outcomes(version), {0}, stop, take));
    if (told) return outcome;
    if (elsewhere.contains(0) && elsewhere.at(0) > version.step) return outcome;
    SW_ASSIGN(const bool again, poll.again());
    if (!again) return outcome;
  }
}

Status Fleet::announce_turn(std::uint32_t attempt, std::uint64_t number, std::uint64_t from) {
  SW_TRY(coordinator_.publish(turns(attempt, number), 0, {{"from", from}}));
  // A rank that is so far behind holds up every step, each for the whole time-out.
  constexpr std::uint64_t kTurnsKept = 128;
  if (number > kTurnsKept) coordinator_.forget_before(turns(attempt, number - kTurnsKept));
  return {};
}

Result<std::uint64_t> Fleet::await_turn(std::uint32_t attempt, std::uint64_t number, const std::stop_token& stop) {
  Result<std::uint64_t> from = fail(ErrorKind::kTimeout, "rank 0 has not said which step to save next");
  const auto take = [&](std::uint32_t, const Json& body) {
    from = json_u64(body, "from", "turns");
    return true;
  };
  constexpr std::chrono::hours kLong{24};
  SW_TRY(coordinator_.await(turns(attempt, number), {0}, {clock_.now() + kLong, stop}, take));
  return from;
}

void Fleet::forget(const VersionName& version) {
  coordinator_.forget(speaks() ? reports(version) : votes(version), options_.rank);
  if (speaks()) coordinator_.forget_before(votes(version));
  spoken_.erase(spoken_.begin(), spoken_.find(version));
}

}  // namespace slackwater
