#include "ranks/commit_protocol.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <new>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "base/units.hpp"
#include "ranks/commit_topics.hpp"
#include "ranks/heartbeat_wait.hpp"
#include "ranks/poll.hpp"
#include "ranks/vote_collector.hpp"
#include "version/fields.hpp"
#include "version/names.hpp"

namespace slackwater {
namespace {

constexpr std::string_view kCommitted = "commit";
constexpr std::string_view kGivenUp = "abort";
constexpr std::string_view kDoubtful = "in-doubt";
constexpr unsigned kPollsPerCheck = 8;  // polls of an awaited message for one check whether another one replaces it

// The index of a group. If memory runs out here, the others must learn of it instead of waiting.
Result<std::shared_ptr<const MergedIndex>> merge_parts(IndexCache& index_cache, std::uint32_t attempt,
                                                       std::vector<IndexPart> parts) {
  try {
    return index_cache.merge(attempt, std::move(parts), Scope::kGroup);
  } catch (const std::bad_alloc&) {
    return fail(ErrorKind::kOutOfMemory, "there is not enough memory for the index of its group");
  }
}

// `heartbeats`: how many this rank has sent. Whoever receives the message need not look at older ones.
Message outcome_message(const Outcome& outcome, std::uint64_t heartbeats) {
  Json body = {{"decision", kCommitted}, {"message", ""}, {"path", ""}};
  if (outcome.error) {
    body = {{"decision", outcome.error->kind == ErrorKind::kInDoubt ? kDoubtful : kGivenUp},
            {"message", outcome.error->message},
            {"path", outcome.error->path}};
    if (outcome.replicas_differ) body["replicas_differ"] = true;
  }
  if (heartbeats > 0) body["heartbeats"] = heartbeats;
  if (!outcome.manifest_text.empty()) body["manifest"] = outcome.manifest_text;
  return Message(std::move(body), outcome.index_text);
}

Result<Outcome> parse_outcome(const Message& message) {
  constexpr const char* kWhere = "outcomes";
  const Json& body = message.body;
  SW_ASSIGN(const std::string decision, json_string(body, "decision", kWhere));
  if (decision == kCommitted) {
    Outcome outcome;
    if (body.contains("manifest")) {
      SW_ASSIGN(outcome.manifest_text, json_string(body, "manifest", kWhere));
    }
    outcome.index_text = message.attachment;
    return outcome;
  }
  Error error;
  error.kind = decision == kGivenUp ? ErrorKind::kAborted : ErrorKind::kInDoubt;
  SW_ASSIGN(error.message, json_string(body, "message", kWhere));
  SW_ASSIGN(error.path, json_string(body, "path", kWhere));
  return Outcome{std::move(error), body.contains("replicas_differ")};
}

// Why an announced attempt is not meant for this rank, if it is not.
std::optional<Error> other_restore(const RestoredFrom& leader, const RestoredFrom& own, std::uint32_t rank) {
  if (leader.round == own.round) return std::nullopt;
  const auto describe_start = [](const RestoredFrom& from) {
    return from.round == 0 ? std::string("the state it was started with")
                           : fmt::format("step {}, restore number {}", from.version.step, from.round);
  };
  return Error{ErrorKind::kMismatch,
               fmt::format("rank 0 goes on from {}, rank {} from {}: a restore did not end well on all ranks; call "
                           "restore on all of them again",
                           describe_start(leader), rank, describe_start(own)),
               {}};
}

}  // namespace

Error aborted_everywhere(std::uint64_t step, const std::string& reason, const std::string& path) {
  return {ErrorKind::kAborted, fmt::format("step {} was aborted on all ranks: {}", step, reason), path};
}

CommitProtocol::CommitProtocol(const CommitProtocolOptions& options, RankTransport& transport, FileSystem& fs,
                               const Clock& clock)
    : options_(options),
      transport_(transport),
      fs_(fs),
      clock_(clock),
      id_(random_id()),
      tree_(options.rank, options.world, options.fan_in),
      heartbeat_(transport, clock,
                 {.rank = options.rank,
                  .timeout = options.timeout,
                  .channel = "save-heartbeats",
                  .on_seen = options.on_heartbeat}) {}

// Waiting.

Deadline CommitProtocol::deadline(const std::stop_token& stop, int quarters) const {
  return {clock_.now() + options_.timeout * quarters / 4, stop};
}

std::vector<Deadline> CommitProtocol::deadlines_by_level(const std::stop_token& stop) const {
  return slackwater::deadlines_by_level(tree_, options_.timeout, clock_.now(), stop);
}

Result<bool> CommitProtocol::poll_once(const Topic& topic, const std::vector<std::uint32_t>& ranks,
                                       const std::stop_token& stop, const RankTransport::Take& take) const {
  return slackwater::poll_once(transport_, clock_, topic, ranks, stop, take);
}

Result<std::vector<std::string>> CommitProtocol::rendezvous(const std::stop_token& stop) {
  if (members_.empty()) {
    // The others wait a little longer than rank 0, so that they receive its reason instead of timing out themselves.
    SW_ASSIGN(members_, transport_.rendezvous({options_.rank, options_.world, id_, options_.fan_in},
                                              deadline(stop, is_rank_0() ? 4 : 5)));
  }
  return members_;
}

// The attempt.

void CommitProtocol::finish_restore(const RestoredFrom& from, std::uint64_t announcements) {
  from_ = from;
  announcements_ = std::max(announcements_, announcements);
  unsure_ = false;
}

Status CommitProtocol::announce_attempt(std::uint64_t step, const Result<Attempt>& attempt) {
  const Json body = {{"step", step},
                     {"number", attempt ? attempt->number : 0},
                     {"refusal", attempt ? std::string() : attempt.error().to_string()},
                     {"round", from_.round},
                     {"version", version_directory(from_.version)}};
  // A number is never used twice. Even if this announcement seems to fail, some ranks may have received it, and two
  // messages under one number could not be told apart.
  std::string text = options_.node_local && attempt ? serialize(*attempt) : std::string();
  SW_TRY(transport_.publish(attempt_topic(++announcements_), 0, Message(body, std::move(text))));
  unsure_ = false;
  return {};
}

Result<AnnouncedAttempt> CommitProtocol::await_attempt(std::uint64_t step, std::uint32_t known,
                                                       const std::stop_token& stop) {
  constexpr const char* kWhere = "attempts";
  Json body;
  std::string text;
  const auto take = [&](std::uint32_t, const Message& message) {
    body = message.body;
    text = message.attachment;
    return true;
  };
  Poll poll(clock_, deadline(stop, 5));
  for (unsigned polls = 1;; ++polls) {
    // Normally the next announcement has the next number. One that did not get through leaves a gap, and then the one
    // after it counts. Asking for the latest number is dearer, so it is done now and then; but a rank that already has
    // an attempt does not wait, and must ask at once.
    std::uint64_t number = announcements_ + 1;
    if (known != 0 || polls % kPollsPerCheck == 0) {
      for (const auto& [rank, newest] : transport_.latest(attempt_topic(0), {0})) number = std::max(number, newest);
    }
    SW_ASSIGN(const bool announced, poll_once(attempt_topic(number), {0}, stop, take));
    if (announced) {
      AnnouncedAttempt attempt;
      SW_ASSIGN(attempt.number, json_u32(body, "number", kWhere));
      if (attempt.number != 0) {
        RestoredFrom leader;
        SW_ASSIGN(leader.round, json_u64(body, "round", kWhere));
        SW_ASSIGN(const std::string version, json_string(body, "version", kWhere));
        leader.version = parse_version_directory(version).value_or(VersionName{});
        // announcements_ does not move: a rank that cannot accept this attempt must find it again at the next step.
        attempt.error = other_restore(leader, from_, options_.rank);
        if (!attempt.error && attempt.number != known) unsure_ = false;
        attempt.text = std::move(text);
        return attempt;
      }
      // Rank 0 could not claim an attempt. The refusal is for one step only; the next step waits for a new
      // announcement.
      SW_ASSIGN(const std::uint64_t refused, json_u64(body, "step", kWhere));
      SW_ASSIGN(const std::string refusal, json_string(body, "refusal", kWhere));
      if (refused <= step) announcements_ = number;
      if (refused < step) continue;  // about a step that this rank did not save
      return fail(aborted_everywhere(step, fmt::format("rank 0: {}", refusal), {}));
    }
    if (known != 0) return AnnouncedAttempt{known, {}, {}};
    SW_ASSIGN(const bool again, poll.again());
    if (!again) break;
  }
  const double waited_s = std::chrono::duration<double>(options_.timeout * 5 / 4).count();
  return fail(Error{
      ErrorKind::kTimeout,
      fmt::format("rank 0 did not start to save within {}; save the same steps on all ranks", format_seconds(waited_s)),
      {},
      0,
      true});
}

// One step: vote, outcome.

// A child waits for the outcome of a step that this rank did not save, and none would ever come. The leader announces
// an abort. A group leader sends a failed vote to its parent, which waits for it there, or releases the step in turn.
void CommitProtocol::release(const VersionName& left_out, std::uint64_t saved) {
  if (!answered_.insert(left_out).second) return;
  const std::string why = saved_instead(saved);
  // A message that does not get through costs the child its time-out, nothing more.
  if (is_rank_0()) {
    const Outcome outcome{aborted_everywhere(left_out.step, fmt::format("rank 0: {}", why), {})};
    (void)transport_.publish(outcome_topic(left_out), 0, outcome_message(outcome, heartbeat_.sent()));
  } else {
    (void)transport_.publish(vote_topic(tree_, left_out, tree_.height() + 1), options_.rank,
                             to_message(Vote{.failures = {{options_.rank, why}}}));
  }
}

Result<Vote> CommitProtocol::vote(const VersionName& version, const std::string& directory, Vote own,
                                  IndexCache& index_cache, const std::stop_token& stop) {
  answered_.insert(version);
  // This rank's own part is done. From here on, its heartbeats report the progress of the ranks it waits for.
  heartbeat_.drop_owed();
  Vote all = std::move(own);
  VoteCollector collector({.rank = options_.rank,
                           .timeout = options_.timeout,
                           .files = options_.files,
                           .reads_records = !options_.node_local},
                          tree_, transport_, fs_, heartbeat_,
                          [&](const VersionName& left_out) { release(left_out, version.step); });
  const Status collected = collector.collect(all, version, directory, stop);
  if (is_rank_0()) return collected ? Result<Vote>(std::move(all)) : fail(collected.error());

  // Whatever went wrong becomes part of the vote: the parent must get a reason, not a time-out. Only a rank that is
  // being closed says nothing.
  if (!collected && collected.error().kind == ErrorKind::kClosed) return fail(collected.error());
  if (!collected) all.failures.push_back({options_.rank, collected.error().to_string()});
  // Compared here, and not by the leader alone: if every rank has a different list, forwarding them all would flood the
  // ranks above.
  if (auto mismatch = replica_mismatch(all)) {
    all.failures.push_back({.rank = options_.rank, .why = std::move(*mismatch), .replicas_differ = true});
  }
  // The group's parts of the index become one, so that rank 0 merges a few parts instead of thousands.
  std::shared_ptr<const MergedIndex> merged;
  if (tree_.height() > 0 && all.failures.empty()) {
    if (auto made = merge_parts(index_cache, version.attempt, std::move(all.index_parts))) {
      merged = std::move(*made);
      all.index_parts = {{options_.rank, tree_.subtree_size(), merged->digest, {}}};
    } else {
      all.failures.push_back({options_.rank, made.error().message});
    }
  }
  // A failed step needs no records: only the reasons go up.
  if (!all.failures.empty()) all = Vote{.failures = std::move(all.failures)};
  // Most steps have the same index as the one before. Then the digest is enough, and the text is not sent again.
  for (IndexPart& part : all.index_parts) {
    if (!index_cache.needs_text(version.attempt, part.digest)) {
      part.text.clear();
    } else if (merged) {
      part.text = merged->text;
    }
  }
  Message message = to_message(all);
  if (heartbeat_.sent() > 0) message.body["heartbeats"] = heartbeat_.sent();
  SW_TRY(transport_.publish(vote_topic(tree_, version, tree_.height() + 1), options_.rank, message));
  // Only after the vote: without vote and heartbeat, this rank would seem dead for a moment.
  heartbeat_.withdraw();
  return Vote{};
}

Status CommitProtocol::announce(const VersionName& version, const Outcome& outcome) {
  SW_TRY(transport_.publish(outcome_topic(version), 0, outcome_message(outcome, heartbeat_.sent())));
  heartbeat_.withdraw();
  // The votes on earlier steps were for the leader alone, and it does not need them any more.
  for (unsigned level = 1; level <= tree_.height(); ++level)
    transport_.forget_before(vote_topic(tree_, version, level));
  // Everybody has voted on this step, so everybody knows how the steps before it ended. After an abort that is not
  // certain, and their outcomes must stay.
  if (!outcome.error) {
    transport_.forget_before(outcome_topic(version));
    answered_.erase(answered_.begin(), answered_.find(version));
  }
  return {};
}

Result<std::optional<Outcome>> CommitProtocol::await_outcome(const VersionName& version, const std::stop_token& stop) {
  std::optional<Outcome> outcome;
  const auto take = [&](std::uint32_t, const Message& message) {
    if (auto parsed = parse_outcome(message)) outcome = std::move(*parsed);
    if (const auto sent = json_u64(message.body, "heartbeats", "outcomes")) heartbeat_.note_sent(0, *sent);
    return true;
  };
  // Longer than any group leader waits for votes, so that a step that fails for a silent rank ends with rank 0's
  // reason. This rank has voted and nobody waits for it, so it relays no heartbeats.
  const Deadline limit = deadline(stop, 6);
  HeartbeatWait wait(heartbeat_, limit, limit.at - clock_.now(), Heartbeat::Relay::kOff);
  for (unsigned polls = 1;; ++polls) {
    // Asked before the outcome is polled: rank 0 announces its steps in order. If it is at a later one and the poll
    // does not find this outcome, it will not come.
    const auto latest = polls % kPollsPerCheck == 0 ? transport_.latest(outcome_topic(version), {0})
                                                    : std::map<std::uint32_t, std::uint64_t>();
    SW_ASSIGN(const bool announced, poll_once(outcome_topic(version), {0}, stop, take));
    if (announced) return outcome;
    if (latest.contains(0) && latest.at(0) > version.step) return outcome;
    SW_ASSIGN(const bool again, wait.again({0}));
    if (!again) return outcome;
  }
}

void CommitProtocol::forget(const VersionName& version) {
  transport_.forget(vote_topic(tree_, version, tree_.height() + 1), options_.rank);
  for (unsigned level = 1; level <= tree_.height(); ++level)
    transport_.forget_before(vote_topic(tree_, version, level));
  answered_.erase(answered_.begin(), answered_.find(version));
}

// Turns.

Status CommitProtocol::announce_turn(std::uint32_t attempt, std::uint64_t number, std::uint64_t from) {
  SW_TRY(transport_.publish(turn_topic(attempt, number), 0, Message(Json{{"from", from}})));
  // A rank that is this many turns behind holds up every step for a whole time-out, so none ever is.
  constexpr std::uint64_t kTurnsKept = 128;
  if (number > kTurnsKept) transport_.forget_before(turn_topic(attempt, number - kTurnsKept));
  return {};
}

Result<std::uint64_t> CommitProtocol::await_turn(std::uint32_t attempt, std::uint64_t number,
                                                 const std::stop_token& stop) {
  Result<std::uint64_t> from = fail(ErrorKind::kTimeout, "rank 0 did not announce which step to save next");
  const auto take = [&](std::uint32_t, const Message& message) {
    from = json_u64(message.body, "from", "turns");
    return true;
  };
  constexpr std::chrono::hours kLong{24};
  SW_TRY(transport_.await(turn_topic(attempt, number), {0}, {clock_.now() + kLong, stop}, take));
  return from;
}

}  // namespace slackwater
