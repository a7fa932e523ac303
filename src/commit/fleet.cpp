#include "commit/fleet.hpp"

#include <algorithm>
#include <map>
#include <new>
#include <utility>

#include <fmt/format.h>

#include "base/digest.hpp"
#include "base/result.hpp"
#include "base/units.hpp"
#include "commit/fields.hpp"
#include "commit/heartbeat_wait.hpp"
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
Topic outcomes(const VersionName& version) { return {"outcomes", version.attempt, version.step}; }
// Each announcement of an attempt has a number of its own, which only rank 0 counts. (No attempt in a topic is 0: a
// store keeps no trace of what was said last under that.)
Topic announcement(std::uint64_t number) { return {"attempts", 1, number}; }

std::string instead(std::uint64_t step) {
  return fmt::format("saved step {} instead; save the same steps on all ranks", step);
}

// Whether there is a record of each of these ranks, and its part of the index; both are in the order of the ranks.
bool speaks_for(const Ballot& ballot, std::uint32_t first, std::uint32_t ranks) {
  if (ballot.records.size() != 1 || ballot.records[0].first != first || ballot.records[0].ranks() != ranks)
    return false;
  std::uint64_t next = first;
  for (const IndexPart& part : ballot.index_parts) {
    if (part.rank != next) return false;
    next += part.ranks;
  }
  return next == std::uint64_t{first} + ranks;
}

// Of a group. Memory may run out here: the others must hear of it, and not wait.
Result<std::shared_ptr<const MergedIndex>> merge_parts(IndexLedger& ledger, std::uint32_t attempt,
                                                       std::vector<IndexPart> parts) {
  try {
    return ledger.merge(attempt, std::move(parts), Reach::kGroup);
  } catch (const std::bad_alloc&) {
    return fail(ErrorKind::kOutOfMemory, "there is no memory for the index of its group");
  }
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
  return Outcome{std::move(error), body.contains("replicas_differ")};
}

}  // namespace

Error aborted_everywhere(std::uint64_t step, const std::string& reason, const std::string& path) {
  return {ErrorKind::kAborted, fmt::format("step {} was aborted on all ranks: {}", step, reason), path};
}

Fleet::Fleet(const FleetOptions& options, Coordinator& coordinator, FileSystem& fs, const Clock& clock)
    : options_(options),
      coordinator_(coordinator),
      fs_(fs),
      clock_(clock),
      id_(random_id()),
      tree_(options.rank, options.world, options.fan_in),
      heartbeats_(coordinator, clock,
                  {.rank = options.rank,
                   .timeout = options.timeout,
                   .box = "save-heartbeats",
                   .on_seen = options.on_heartbeat}) {}

Patience Fleet::patience(const std::stop_token& stop, int quarters) const {
  return {clock_.now() + options_.timeout * quarters / 4, stop};
}

std::chrono::milliseconds Fleet::wait_on(unsigned level) const {
  const auto more =
      tree_.levels() < 2 ? std::chrono::milliseconds(0) : options_.timeout / 4 * (level - 1) / (tree_.levels() - 1);
  return options_.timeout + more;
}

std::vector<Patience> Fleet::patience_by_level(const std::stop_token& stop) const {
  const TimePoint now = clock_.now();
  std::vector<Patience> patience;
  for (unsigned level = 1; level <= tree_.height(); ++level) patience.push_back({now + wait_on(level), stop});
  return patience;
}

Topic Fleet::votes(const VersionName& version, unsigned level) const {
  return {tree_.box("votes", level), version.attempt, version.step};
}

Topic Fleet::own_votes(const VersionName& version) const { return votes(version, tree_.height() + 1); }

Result<std::vector<std::string>> Fleet::gather(const std::stop_token& stop) {
  if (members_.empty()) {
    SW_ASSIGN(members_, coordinator_.gather({options_.rank, options_.world, id_, options_.fan_in},
                                            patience(stop, leads() ? 4 : 5)));
  }
  return members_;
}

void Fleet::finish_restore(const RestoredFrom& from, std::uint64_t announcements) {
  from_ = from;
  announcements_ = std::max(announcements_, announcements);
  unsure_ = false;
}

// A number is never used twice, not even if its announcement did not seem to get through: it may have.
Status Fleet::announce_attempt(std::uint64_t step, const Result<Attempt>& attempt) {
  const Json body = {{"step", step},
                     {"number", attempt ? attempt->number : 0},
                     {"refusal", attempt ? std::string() : attempt.error().to_string()},
                     {"round", from_.round},
                     {"version", version_directory(from_.version)}};
  SW_TRY(coordinator_.publish(announcement(++announcements_), 0, Message(body)));
  unsure_ = false;
  return {};
}

std::optional<Error> Fleet::not_ours(const RestoredFrom& theirs) const {
  if (theirs.round == from_.round) return std::nullopt;
  const auto describe_start = [](const RestoredFrom& from) {
    return from.round == 0 ? std::string("the state it was started with")
                           : fmt::format("step {}, restore number {}", from.version.step, from.round);
  };
  return Error{ErrorKind::kMismatch,
               fmt::format("rank 0 goes on from {}, rank {} from {}: a restore did not end well on all ranks; call "
                           "restore on all of them again",
                           describe_start(theirs), options_.rank, describe_start(from_)),
               {}};
}

Result<AnnouncedAttempt> Fleet::await_attempt(std::uint64_t step, std::uint32_t known, const std::stop_token& stop) {
  constexpr const char* kWhere = "attempts";
  Json said;
  const auto take = [&](std::uint32_t, const Message& message) {
    said = message.body;
    return true;
  };
  Poll poll(clock_, patience(stop, 5));
  for (unsigned looks = 1;; ++looks) {
    std::uint64_t number = announcements_ + 1;
    // One that could not be told leaves a gap: then what was told after it counts.
    if (known != 0 || looks % kLooksBetween == 0) {
      for (const auto& [rank, newest] : coordinator_.latest(announcement(0), {0})) number = std::max(number, newest);
    }
    SW_ASSIGN(const bool told, look(announcement(number), {0}, stop, take));
    if (told) {
      AnnouncedAttempt announced;
      RestoredFrom theirs;
      SW_ASSIGN(announced.number, json_u32(said, "number", kWhere));
      if (announced.number != 0) {
        SW_ASSIGN(theirs.round, json_u64(said, "round", kWhere));
        SW_ASSIGN(const std::string version, json_string(said, "version", kWhere));
        theirs.version = parse_version_directory(version).value_or(VersionName{});
        // It stays the next one to hear: whoever cannot accept it finds it again at the next step.
        announced.error = not_ours(theirs);
        if (!announced.error && announced.number != known) unsure_ = false;
        return announced;
      }
      SW_ASSIGN(const std::uint64_t refused, json_u64(said, "step", kWhere));
      SW_ASSIGN(const std::string refusal, json_string(said, "refusal", kWhere));
      if (refused <= step) announcements_ = number;
      if (refused < step) continue;  // a step that this rank did not save
      return fail(aborted_everywhere(step, fmt::format("rank 0: {}", refusal), {}));
    }
    if (known != 0) return AnnouncedAttempt{known, {}};
    SW_ASSIGN(const bool again, poll.again());
    if (!again) break;
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
  // Any rank may have written an abort; of its own decision the leader need not be told. The directory is listed: a host
  // that asked for the manifest before it is there would not see it for a minute, not even after a restart. That is a
  // listing of up to 2,048 names, but a rare one, and while nothing changes NFS answers it without sending them again.
  if (!directory.empty() && lists_name(fs_, directory, kManifestName).value_or(false)) return true;
  if (leads()) return false;
  return look(outcomes(version), {0}, stop, [](std::uint32_t, const Message&) { return true; });
}

// How long ago this rank last gave a sign of itself.
std::string Fleet::silence(std::uint32_t rank, unsigned level, TimePoint began) const {
  const std::optional<TimePoint> last = heartbeats_.last_seen(rank);
  const bool beat = last && *last > began;
  const auto since = std::chrono::duration_cast<std::chrono::milliseconds>(clock_.now() - (beat ? *last : began));
  return fmt::format("did not report within {}{}{}: {}", seconds_text(since), beat ? " of its last heartbeat" : "",
                     level == 1 ? "" : " for its group",
                     beat ? "hung in its storage, or dead" : "late, dead, or saving another step");
}

Status Fleet::add(Ballot& ballot, const VersionName& version, unsigned level, const std::string& directory,
                  const Patience& patience) {
  const Topic topic = votes(version, level);
  std::vector<std::uint32_t> ranks = tree_.heard_on(level);
  const auto take = [&](std::uint32_t rank, const Message& message) {
    std::erase(ranks, rank);
    if (const auto sent = json_u64(message.body, "heartbeats", topic.box)) {
      heartbeats_.note_sent(rank, *sent);
      if (heartbeats_.due()) heartbeats_.show();  // a slow rank has come; what follows may take a while
    }
    auto said = parse_ballot(message, topic.box);
    if (said) {
      merge(ballot, std::move(*said));
    } else {
      ballot.failures.push_back({rank, said.error().message});
    }
    return ballot.failures.empty();
  };
  if (ranks.empty()) return {};
  const TimePoint began = clock_.now();
  HeartbeatWait wait(heartbeats_, patience, wait_on(level), true);
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
    SW_ASSIGN(const bool again, wait.again(ranks));
    if (again) continue;
    for (const std::uint32_t rank : ranks) ballot.failures.push_back({rank, silence(rank, level, began)});
    return {};
  }
}

// The leader says so itself; the speaker of a group says it to whom he speaks, who waits for it there, or passes it on.
void Fleet::release(const VersionName& left_out, std::uint64_t saved_instead) {
  if (!spoken_.insert(left_out).second) return;
  const std::string why = instead(saved_instead);
  // What does not get through is found out after the time-out.
  if (leads()) {
    (void)tell(left_out, {aborted_everywhere(left_out.step, fmt::format("rank 0: {}", why), {})});
  } else {
    (void)coordinator_.publish(own_votes(left_out), options_.rank,
                               to_message(Ballot{.failures = {{options_.rank, why}}}));
  }
}

// What a rank has promised must be there for others too, not only in its own host's cache.
Status Fleet::check_records(const VersionName& version, Ballot& ballot, const std::string& directory,
                            const Patience& patience) {
  SW_ASSIGN(const std::vector<RecordReference> records, references(ballot, options_.files, directory));
  for (const RecordReference& record : records) {
    if (record.rank == options_.rank) continue;
    const std::string path = fmt::format("{}/{}", directory, record.file);
    const std::string own = options_.files.directory(record.rank);
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
      // What was missing is asked for again only after its directory was opened; settled() has opened the version's.
      if (again && !own.empty()) (void)fs_.list(fmt::format("{}/{}", directory, own));
      if (again) continue;
      ballot.failures.push_back({record.rank, fmt::format("its record, as rank {} finds it, is not the one it wrote{}",
                                                          options_.rank, text ? "" : ": " + text.error().message)});
      return {};
    }
  }
  return {};
}

Status Fleet::hear(Ballot& all, const VersionName& version, const std::string& directory, const std::stop_token& stop) {
  // All from now on: the others wait for the outcome only a little longer, however late a ballot of this group comes.
  const std::vector<Patience> waits = patience_by_level(stop);
  for (unsigned level = 1; level <= tree_.height() && all.failures.empty(); ++level) {
    SW_TRY(add(all, version, level, directory, waits[level - 1]));
    if (level != 1 || !all.failures.empty()) continue;
    // Behind a rank that was slow but alive the first wait is over, and its record may still come into view late.
    // Whoever waits for this rank saw a heartbeat of it a quarter of the time-out ago at most.
    Patience records = waits.front();
    records.deadline = std::max(records.deadline, clock_.now() + options_.timeout / 2);
    SW_TRY(check_records(version, all, directory, records));
  }
  if (all.failures.empty() && !speaks_for(all, options_.rank, tree_.speaks_for())) {
    return fail(ErrorKind::kMismatch,
                fmt::format("the ballots that came are not one of each of the {} ranks that follow rank {}",
                            tree_.speaks_for() - 1, options_.rank),
                directory);
  }
  return {};
}

Result<Ballot> Fleet::vote(const VersionName& version, const std::string& directory, Ballot own, IndexLedger& ledger,
                           const std::stop_token& stop) {
  spoken_.insert(version);
  heartbeats_.drop_owed();  // this rank's own part is done; from here on heartbeats tell of those it waits for
  Ballot all = std::move(own);
  const Status heard = hear(all, version, directory, stop);
  if (leads()) return heard ? Result<Ballot>(std::move(all)) : fail(heard.error());

  if (!heard && heard.error().kind == ErrorKind::kClosed) return fail(heard.error());
  if (!heard) all.failures.push_back({options_.rank, heard.error().to_string()});
  // Here, and not by the leader alone: lists that differ on every rank would be passed on one by one.
  if (auto mismatch = replica_mismatch(all)) {
    all.failures.push_back({.rank = options_.rank, .why = std::move(*mismatch), .replicas_differ = true});
  }
  std::shared_ptr<const MergedIndex> merged;
  if (tree_.height() > 0 && all.failures.empty()) {
    if (auto made = merge_parts(ledger, version.attempt, std::move(all.index_parts))) {
      merged = std::move(*made);
      all.index_parts = {{options_.rank, tree_.speaks_for(), merged->digest, {}}};
    } else {
      all.failures.push_back({options_.rank, made.error().message});
    }
  }
  if (!all.failures.empty()) all = Ballot{.failures = std::move(all.failures)};
  for (IndexPart& part : all.index_parts) {
    if (!ledger.needs_text(version.attempt, part.digest)) {
      part.text.clear();
    } else if (merged) {
      part.text = merged->text;
    }
  }
  Message message = to_message(all);
  if (heartbeats_.sent() > 0)
    message.body["heartbeats"] = heartbeats_.sent();  // whoever hears this needs no older ones
  SW_TRY(coordinator_.publish(own_votes(version), options_.rank, message));
  heartbeats_.withdraw();
  return Ballot{};
}

Status Fleet::tell(const VersionName& version, const Outcome& outcome) {
  Json body = {{"decision", kCommitted}, {"message", ""}, {"path", ""}};
  if (outcome.error) {
    body = {{"decision", outcome.error->kind == ErrorKind::kInDoubt ? kDoubtful : kGivenUp},
            {"message", outcome.error->message},
            {"path", outcome.error->path}};
    if (outcome.replicas_differ) body["replicas_differ"] = true;
  }
  if (heartbeats_.sent() > 0) body["heartbeats"] = heartbeats_.sent();
  return coordinator_.publish(outcomes(version), 0, Message(std::move(body)));
}

Status Fleet::announce(const VersionName& version, const Outcome& outcome) {
  SW_TRY(tell(version, outcome));
  heartbeats_.withdraw();
  for (unsigned level = 1; level <= tree_.height(); ++level) coordinator_.forget_before(votes(version, level));
  // Everybody voted for this step, and so knows how those before it ended.
  if (!outcome.error) {
    coordinator_.forget_before(outcomes(version));
    spoken_.erase(spoken_.begin(), spoken_.find(version));
  }
  return {};
}

Result<std::optional<Outcome>> Fleet::await_outcome(const VersionName& version, const std::stop_token& stop) {
  std::optional<Outcome> outcome;
  const auto take = [&](std::uint32_t, const Message& message) {
    if (auto parsed = parse_outcome(message.body)) outcome = std::move(*parsed);
    if (const auto sent = json_u64(message.body, "heartbeats", "outcomes")) heartbeats_.note_sent(0, *sent);
    return true;
  };
  const Patience enough = patience(stop, 6);
  HeartbeatWait wait(heartbeats_, enough, enough.deadline - clock_.now(), false);
  for (unsigned looks = 1;; ++looks) {
    const auto elsewhere = looks % kLooksBetween == 0 ? coordinator_.latest(outcomes(version), {0})
                                                      : std::map<std::uint32_t, std::uint64_t>();
    SW_ASSIGN(const bool told, look(outcomes(version), {0}, stop, take));
    if (told) return outcome;
    if (elsewhere.contains(0) && elsewhere.at(0) > version.step) return outcome;
    SW_ASSIGN(const bool again, wait.again({0}));
    if (!again) return outcome;
  }
}

Status Fleet::announce_turn(std::uint32_t attempt, std::uint64_t number, std::uint64_t from) {
  SW_TRY(coordinator_.publish(turns(attempt, number), 0, Message(Json{{"from", from}})));
  // A rank that is so far behind holds up every step, each for the whole time-out.
  constexpr std::uint64_t kTurnsKept = 128;
  if (number > kTurnsKept) coordinator_.forget_before(turns(attempt, number - kTurnsKept));
  return {};
}

Result<std::uint64_t> Fleet::await_turn(std::uint32_t attempt, std::uint64_t number, const std::stop_token& stop) {
  Result<std::uint64_t> from = fail(ErrorKind::kTimeout, "rank 0 has not said which step to save next");
  const auto take = [&](std::uint32_t, const Message& message) {
    from = json_u64(message.body, "from", "turns");
    return true;
  };
  constexpr std::chrono::hours kLong{24};
  SW_TRY(coordinator_.await(turns(attempt, number), {0}, {clock_.now() + kLong, stop}, take));
  return from;
}

void Fleet::forget(const VersionName& version) {
  coordinator_.forget(own_votes(version), options_.rank);
  for (unsigned level = 1; level <= tree_.height(); ++level) coordinator_.forget_before(votes(version, level));
  spoken_.erase(spoken_.begin(), spoken_.find(version));
}

}  // namespace slackwater
