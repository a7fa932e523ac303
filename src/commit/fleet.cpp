#include "commit/fleet.hpp"

#include <algorithm>
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

Topic attempts(std::uint64_t epoch) { return {.box = "attempts", .attempt = 0, .step = epoch}; }
Topic turns(std::uint32_t attempt, std::uint64_t number) { return {"turns", attempt, number}; }
Topic reports(const VersionName& version) { return {"reports", version.attempt, version.step}; }
Topic outcomes(const VersionName& version) { return {"outcomes", version.attempt, version.step}; }

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

Fleet::Fleet(const FleetOptions& options, Coordinator& coordinator, FileSystem& fs, const Clock& clock)
    : options_(options), coordinator_(coordinator), fs_(fs), clock_(clock), id_(random_id()) {}

Patience Fleet::patience(const std::stop_token& stop, int quarters) const {
  return {clock_.now() + options_.timeout * quarters / 4, stop};
}

Topic Fleet::votes(const VersionName& version) const {
  return {fmt::format("votes-g{:04}", group_of(options_.rank)), version.attempt, version.step};
}

Result<std::vector<std::string>> Fleet::gather(const std::stop_token& stop) {
  if (members_.empty()) {
    SW_ASSIGN(members_, coordinator_.gather({options_.rank, options_.world, id_}, patience(stop, leads() ? 4 : 5)));
  }
  return members_;
}

Status Fleet::announce_attempt(std::uint64_t epoch, const Attempt& attempt) {
  return coordinator_.publish(attempts(epoch), 0, {{"number", attempt.number}});
}

Result<std::uint32_t> Fleet::await_attempt(std::uint64_t epoch, const std::stop_token& stop) {
  Result<std::uint32_t> number = 0;
  const auto take = [&](std::uint32_t, const Json& body) {
    number = json_u32(body, "number", "attempts");
    return true;
  };
  SW_ASSIGN(const bool told, coordinator_.await(attempts(epoch), {0}, patience(stop, 5), take));
  if (told) return number;
  return fail(Error{ErrorKind::kTimeout,
                    fmt::format("rank 0 has not begun to save within {}; save the same steps on all ranks",
                                seconds_text(options_.timeout * 5 / 4)),
                    {},
                    0,
                    true});
}

Status Fleet::add(Ballot& ballot, const Topic& topic, const std::vector<std::uint32_t>& ranks, const Patience& patience,
                  const std::string& silence) {
  std::vector<std::uint32_t> silent = ranks;
  const auto take = [&](std::uint32_t rank, const Json& body) {
    std::erase(silent, rank);
    auto said = parse_ballot(body, topic.box);
    if (said) {
      merge(ballot, std::move(*said));
    } else {
      ballot.failures.push_back({rank, said.error().message});
    }
    return ballot.failures.empty();
  };
  SW_ASSIGN(const bool heard, coordinator_.await(topic, ranks, patience, take));
  if (heard) return {};
  for (const std::uint32_t rank : silent) ballot.failures.push_back({rank, silence});
  return {};
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
      const auto told = [](std::uint32_t, const Json&) { return true; };
      SW_ASSIGN(const bool over, coordinator_.await(outcomes(version), {0}, {clock_.now(), patience.stop}, told));
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
  const std::uint32_t group = group_of(options_.rank);
  const std::uint32_t speaker = group * options_.fan_in;
  if (options_.rank != speaker) {
    SW_TRY(coordinator_.publish(votes(version), options_.rank, to_json(own)));
    return Ballot{};
  }

  Ballot all = std::move(own);
  const std::uint32_t end = std::min(speaker + options_.fan_in, options_.world);
  if (all.failures.empty()) {
    const Patience waits = patience(stop);
    std::vector<std::uint32_t> others;
    for (std::uint32_t rank = speaker + 1; rank < end; ++rank) others.push_back(rank);
    SW_TRY(add(
        all, votes(version), others, waits,
        fmt::format("did not report within {}: late, dead, or saving another step", seconds_text(options_.timeout))));
    if (all.failures.empty()) SW_TRY(check_records(version, all, directory, waits));
  }
  if (!leads()) {
    SW_TRY(coordinator_.publish(reports(version), options_.rank, to_json(all)));
    return Ballot{};
  }

  std::vector<std::uint32_t> speakers;
  for (std::uint32_t rank = options_.fan_in; rank < options_.world; rank += options_.fan_in) speakers.push_back(rank);
  if (all.failures.empty() && !speakers.empty()) {
    SW_TRY(add(all, reports(version), speakers, patience(stop, 5),
               fmt::format("did not report within {} for its group of {}: late, dead, or saving another step",
                           seconds_text(options_.timeout * 5 / 4), options_.fan_in)));
  }
  if (all.failures.empty() && all.records.size() != options_.world) {
    return fail(ErrorKind::kInternal, fmt::format("{} ranks have {} records", options_.world, all.records.size()),
                directory);
  }
  return all;
}

Status Fleet::announce(const VersionName& version, const Outcome& outcome) {
  Json body = {{"decision", kCommitted}, {"message", ""}, {"path", ""}};
  if (outcome.error) {
    body = {{"decision", outcome.error->kind == ErrorKind::kInDoubt ? kDoubtful : kGivenUp},
            {"message", outcome.error->message},
            {"path", outcome.error->path}};
  }
  SW_TRY(coordinator_.publish(outcomes(version), 0, body));
  coordinator_.forget_before(votes(version));
  coordinator_.forget_before(reports(version));
  // Everybody voted for this step, and so knows how those before it ended.
  if (!outcome.error) coordinator_.forget_before(outcomes(version));
  return {};
}

Result<std::optional<Outcome>> Fleet::await_outcome(const VersionName& version, const std::stop_token& stop) {
  std::optional<Outcome> outcome;
  const auto take = [&](std::uint32_t, const Json& body) {
    if (auto parsed = parse_outcome(body)) outcome = std::move(*parsed);
    return true;
  };
  SW_TRY(coordinator_.await(outcomes(version), {0}, patience(stop, 6), take));
  return outcome;
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
  const bool speaks = options_.rank % options_.fan_in == 0;
  coordinator_.forget(speaks ? reports(version) : votes(version), options_.rank);
  if (speaks) coordinator_.forget_before(votes(version));
}

}  // namespace slackwater
