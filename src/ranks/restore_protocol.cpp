#include "ranks/restore_protocol.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "ranks/poll.hpp"

namespace slackwater {
namespace {

constexpr const char* kOffers = "restore-offers";            // under the number of the rank's own call
constexpr const char* kRounds = "restore-rounds";            // the leader's first choice, under the number of its round
constexpr const char* kChoices = "restore-choices";          // its later choices
constexpr const char* kVerdicts = "restore-verdicts";        // how the last choice went
constexpr const char* kListingChannel = "restore-listings";  // what a rank sees when all list again
constexpr const char* kHeartbeats = "restore-heartbeats";

constexpr unsigned kPollsPerQuery = 8;  // polls under the likely number for one query which numbers there are

}  // namespace

RestoreProtocol::RestoreProtocol(const CommitProtocol& protocol, RankTransport& transport, const Clock& clock,
                                 RestoreCalls& calls)
    : protocol_(protocol),
      transport_(transport),
      clock_(clock),
      calls_(calls),
      chooser_(protocol.options().world, protocol.options().timeout) {}

void RestoreProtocol::note_progress() {
  if (heartbeat_) heartbeat_->note_progress();
}

// The three exchanges: ranks report, the leader answers with a choice.

Result<RestoreProtocol::Choice> RestoreProtocol::begin(const Offer& offer) {
  call_ = ++calls_.made;
  auto choice = exchange_offers(offer);
  // A rank that leaves a restore early takes its message back. It must not be taken for part of a later restore.
  const RankTree& tree = protocol_.tree();
  if (!choice) transport_.forget({tree.channel(kOffers, tree.height() + 1), 1, call_}, protocol_.options().rank);
  return choice;
}

Result<RestoreProtocol::Choice> RestoreProtocol::next(Verdict verdict, const Error& error) {
  ++turn_;
  auto choice = exchange_verdicts(verdict, error);
  if (!choice) transport_.forget(own_topic(kVerdicts), protocol_.options().rank);
  return choice;
}

Result<RestoreProtocol::Choice> RestoreProtocol::list_again(const Offer& offer) {
  ++turn_;
  SW_ASSIGN(const RankReports offers, collect(kListingChannel, offer_json(offer)));
  if (!protocol_.is_rank_0()) return await_choice(6);
  return send(chooser_.choose(offer.step, offers, kListingChannel));
}

Result<RestoreProtocol::Choice> RestoreProtocol::exchange_offers(const Offer& offer) {
  Json own = offer_json(offer);
  own["call"] = call_;
  SW_ASSIGN(const RankReports offers, collect(kOffers, std::move(own)));
  if (!protocol_.is_rank_0()) return await_first_choice();
  open_round(call_);
  return send_first(chooser_.choose(offer.step, offers, kOffers), offers);
}

Result<RestoreProtocol::Choice> RestoreProtocol::exchange_verdicts(Verdict verdict, const Error& error) {
  SW_ASSIGN(const RankReports verdicts, collect(kVerdicts, verdict_json(verdict, error)));
  // The leader may be slower to read its own part, and then waits for the slowest of the others.
  if (!protocol_.is_rank_0()) return await_choice(9);
  return send(chooser_.judge(verdicts, kVerdicts));
}

void RestoreProtocol::open_round(std::uint64_t round) {
  round_ = round;
  calls_.round = std::max(calls_.round, round);
  // From here on all ranks have the same count again, whatever calls they made before.
  calls_.made = std::max(calls_.made, round);
  heartbeat_.emplace(transport_, clock_,
                     Heartbeat::Options{.rank = protocol_.options().rank,
                                        .timeout = protocol_.options().timeout,
                                        .channel = kHeartbeats,
                                        .round = round});
}

// Reports, up the tree.

// Before the round is known, messages carry the number of this rank's own call.
Topic RestoreProtocol::topic(std::string channel) const {
  return {std::move(channel), turn_, round_ == 0 ? call_ : round_};
}

Topic RestoreProtocol::own_topic(const char* name) const {
  const RankTree& tree = protocol_.tree();
  return topic(tree.channel(name, tree.height() + 1));
}

Result<RankReports> RestoreProtocol::collect(const char* name, Json own) {
  const RankTree& tree = protocol_.tree();
  const std::uint32_t self = protocol_.options().rank;
  RankReports reports{{self, std::move(own)}};
  const auto take = [&](std::uint32_t, const Message& message) {
    unpack(message, name, reports);
    return true;
  };
  // A child that does not report in time is simply left out. Only the leader judges what that means.
  const std::vector<Deadline> deadlines = protocol_.deadlines_by_level({});
  for (unsigned level = 1; level <= tree.height(); ++level) {
    const std::string channel = tree.channel(name, level);
    if (round_ == 0) {
      SW_TRY(receive_offers(channel, tree.children(level), deadlines[level - 1], reports));
    } else {
      SW_TRY(heartbeat_->await(topic(channel), tree.children(level), deadlines[level - 1], take));
    }
  }
  if (protocol_.is_rank_0()) return reports;
  SW_TRY(transport_.publish(own_topic(name), self, pack(reports)));
  return RankReports{};
}

Status RestoreProtocol::receive_offers(const std::string& channel, std::vector<std::uint32_t> ranks,
                                       const Deadline& deadline, RankReports& reports) {
  std::uint64_t call = call_;
  const auto take = [&](std::uint32_t rank, const Message& message) {
    std::erase(ranks, rank);
    calls_.last_call[rank] = call;
    unpack(message, kOffers, reports);
    return true;
  };
  Poll poll(clock_, deadline);
  for (unsigned polls = 1; !ranks.empty(); ++polls) {
    // First under the number of this rank's own call: usually all ranks are at the same call. An offer that was
    // received before belongs to an earlier restore.
    std::vector<std::uint32_t> likely = ranks;
    std::erase_if(likely, [&](std::uint32_t rank) { return calls_.last_call[rank] >= call_; });
    call = call_;
    if (!likely.empty()) SW_TRY(protocol_.poll_once({channel, 1, call}, likely, {}, take));
    // Now and then, this rank asks which numbers there are: a child may be some calls ahead or behind.
    if (polls % kPollsPerQuery == 0) {
      for (const auto& [rank, newest] : transport_.latest({channel, 1, 0}, ranks)) {
        if (newest <= calls_.last_call[rank]) continue;
        call = newest;
        SW_TRY(protocol_.poll_once({channel, 1, call}, {rank}, {}, take));
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

// Choices: sent by the leader, awaited by the others.

Status RestoreProtocol::pause_before(const Choice& choice) {
  // A shared file system may show a version late on some hosts, so listing again at once would be of no use.
  if (choice.kind != Choice::Kind::kListAgain) return {};
  for (Poll poll(clock_, {clock_.now() + chooser_.pause(), {}});;) {
    SW_ASSIGN(const bool again, poll.again());
    if (!again) return {};
  }
}

Result<RestoreProtocol::Choice> RestoreProtocol::send_first(Choice choice, const RankReports& offers) {
  // Each rank learns which of its calls this round answers. A rank that has given up and called again must not take the
  // answer to its earlier call.
  std::map<std::uint32_t, std::uint64_t> calls;
  std::vector<std::uint32_t> present;
  for (const auto& [rank, offer] : offers) {
    const auto call = json_u64(offer, "call", kOffers);
    if (!call) continue;
    calls[rank] = *call;
    present.push_back(rank);
    calls_.made = std::max(calls_.made, *call);
  }
  choice.round = round_;
  SW_TRY(pause_before(choice));
  Json body = choice_json(choice);
  add_answered_calls(body, calls, ranks_except(present, protocol_.options().world));
  SW_TRY(transport_.publish({kRounds, 1, round_}, 0, Message(std::move(body))));
  return choice;
}

Result<RestoreProtocol::Choice> RestoreProtocol::send(Choice choice) {
  choice.round = round_;
  choice.announcements = protocol_.announcements();
  SW_TRY(pause_before(choice));
  SW_TRY(transport_.publish(topic(kChoices), 0, Message(choice_json(choice))));
  return choice;
}

Result<RestoreProtocol::Choice> RestoreProtocol::await_first_choice() {
  constexpr int kQuarters = 6;
  Json body;
  const auto take = [&](std::uint32_t, const Message& message) {
    body = message.body;
    return true;
  };
  Poll poll(clock_, protocol_.deadline({}, kQuarters));
  for (unsigned polls = 1;; ++polls) {
    // The leader numbers rounds by its own calls, so this number is likely. If its count differs, ask for the latest.
    std::uint64_t round = std::max(calls_.round + 1, call_);
    if (polls % kPollsPerQuery == 0) {
      for (const auto& [rank, newest] : transport_.latest({kRounds, 1, 0}, {0})) {
        if (newest > calls_.round) round = newest;
      }
    }
    SW_ASSIGN(const bool received, protocol_.poll_once({kRounds, 1, round}, {0}, {}, take));
    if (received) {
      SW_ASSIGN(const std::uint64_t answered, answered_call(body, protocol_.options().rank, kRounds));
      calls_.round = round;
      // A round that answers another call of this rank, or none, is not meant for it.
      if (answered != call_) continue;
      open_round(round);
      return parse_choice(body, round, kChoices);
    }
    SW_ASSIGN(const bool again, poll.again());
    if (!again) break;
  }
  Error error = silent_ranks({0}, "did not say which checkpoint to restore", protocol_.options().timeout, kQuarters);
  if (!missing_.empty())
    error.message = fmt::format("{}; {} did not call restore either", error.message, name_ranks(missing_));
  return fail(std::move(error));
}

Result<RestoreProtocol::Choice> RestoreProtocol::await_choice(int quarters) {
  Result<Choice> choice = Choice{};
  const auto take = [&](std::uint32_t, const Message& message) {
    choice = parse_choice(message.body, round_, kChoices);
    return true;
  };
  // This rank has reported and nobody waits for it, so it relays no heartbeats.
  const Deadline deadline = protocol_.deadline({}, quarters);
  SW_ASSIGN(const bool received, heartbeat_->await(topic(kChoices), {0}, deadline, take, Heartbeat::Relay::kOff));
  if (!received)
    return fail(silent_ranks({0}, "did not say which checkpoint to restore", protocol_.options().timeout, quarters));
  return choice;
}

}  // namespace slackwater
