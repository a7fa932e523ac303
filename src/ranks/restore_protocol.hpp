// RestoreProtocol: all ranks restore the same version, or none does. Each rank offers the versions it sees. The leader
// chooses one (restore_chooser.hpp). Each rank tries it and reports a verdict. The leader then chooses the next one, or
// declares the restore done. Group leaders collect the reports of their groups, as for a commit.
//
// Calls of restore() can get out of step: a rank times out, or calls once more than the others. So no rank relies on
// the others' counts. A rank sends its offer under the number of its own call. The leader opens a round, numbers it,
// and states which call of each rank it answers; a rank whose call is not meant keeps waiting. All further messages
// carry the number of the round.
// Made by the Engine for one restore. Thread rule: one thread (the trainer's, inside restore()). Lifetime: what it is
// given outlives it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ranks/commit_protocol.hpp"
#include "ranks/heartbeat.hpp"
#include "ranks/rank_transport.hpp"
#include "ranks/restore_chooser.hpp"
#include "ranks/restore_messages.hpp"
#include "slackwater/error.hpp"

namespace slackwater {

// What a rank remembers from one restore to the next.
struct RestoreCalls {
  std::uint64_t made = 0;                            // the number of this rank's last call
  std::uint64_t round = 0;                           // the last round of the leader that this rank knows of
  std::map<std::uint32_t, std::uint64_t> last_call;  // of each child: its last call that was received
};

class RestoreProtocol {
 public:
  using Offer = RestoreOffer;
  using Verdict = RestoreVerdict;
  using Choice = RestoreChoice;

  RestoreProtocol(const CommitProtocol& protocol, RankTransport& transport, const Clock& clock, RestoreCalls& calls);

  // These wait for the other ranks, at most a few time-outs after the last heartbeat. They fail only if the ranks
  // cannot be reached, or do not call restore() at the same time.
  [[nodiscard]] Result<Choice> begin(const Offer& offer);
  [[nodiscard]] Result<Choice> next(Verdict verdict, const Error& error);  // about the last choice
  [[nodiscard]] Result<Choice> list_again(const Offer& offer);

  // This rank has read a part of the version that it tries. The others keep waiting.
  void note_progress();

 private:
  [[nodiscard]] Topic topic(std::string channel) const;
  [[nodiscard]] Topic own_topic(const char* name) const;  // where this rank reports to its parent
  // Sends this rank's report, together with those of the ranks it leads. The leader gets the reports of all ranks that
  // answered in time; the others get none.
  [[nodiscard]] Result<RankReports> collect(const char* name, Json own);
  [[nodiscard]] Status receive_offers(const std::string& channel, std::vector<std::uint32_t> ranks,
                                      const Deadline& deadline, RankReports& reports);

  void open_round(std::uint64_t round);
  [[nodiscard]] Result<Choice> exchange_offers(const Offer& offer);
  [[nodiscard]] Result<Choice> exchange_verdicts(Verdict verdict, const Error& error);
  [[nodiscard]] Result<Choice> send_first(Choice choice, const RankReports& offers);
  [[nodiscard]] Result<Choice> send(Choice choice);
  [[nodiscard]] Status pause_before(const Choice& choice);
  [[nodiscard]] Result<Choice> await_first_choice();
  [[nodiscard]] Result<Choice> await_choice(int quarters);

  const CommitProtocol& protocol_;
  RankTransport& transport_;
  const Clock& clock_;
  RestoreCalls& calls_;

  std::uint64_t call_ = 0;              // of this rank
  std::uint64_t round_ = 0;             // of the leader; 0: not known yet
  std::optional<Heartbeat> heartbeat_;  // set once the round is known
  std::uint32_t turn_ = 1;              // exchanges of reports and choices so far, with the current one
  std::vector<std::uint32_t> missing_;  // children whose offers did not come in time
  RestoreChooser chooser_;              // used by the leader
};

}  // namespace slackwater
