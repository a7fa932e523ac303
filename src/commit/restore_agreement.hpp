// RestoreAgreement: all ranks restore the same version, or none. Each offers what it sees; the leader names one; each
// tries it and says how that went; the leader names the next, or declares it done. A version that one rank finds
// damaged is passed over by all. One that only some ranks see is not damaged: all look again a few times, and if that
// does not help, the restore fails. Group leaders gather what their groups say, as for a commit.
//
// Calls of restore() may go astray: one rank times out, or calls once more than the others. So nobody counts on the
// others' counts. A rank offers under the number of its own call. The leader opens a round, numbered by itself, and
// says whose call it answers; a rank that is not meant waits on. All further messages carry the number of the round.
// Made for one restore. Thread rule: one thread (the trainer's, inside restore()). Lifetime: what it is given outlives
// it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "commit/coordinator.hpp"
#include "commit/fleet.hpp"
#include "commit/names.hpp"
#include "commit/signs_of_life.hpp"
#include "slackwater/error.hpp"

namespace slackwater {

// What a rank remembers from one restore to the next.
struct RestoreCalls {
  std::uint64_t made = 0;                        // the number of this rank's last call
  std::uint64_t round = 0;                       // of the leader, heard of last
  std::map<std::uint32_t, std::uint64_t> heard;  // the last call heard of each rank that reports to this one
};

class RestoreAgreement {
 public:
  RestoreAgreement(const Fleet& fleet, Coordinator& coordinator, const Clock& clock, RestoreCalls& calls);

  struct Offer {
    std::optional<std::uint64_t> step;  // the one asked for
    std::vector<VersionName> versions;  // that this rank sees and could try
    std::optional<Error> error;         // it cannot even look
  };
  enum class Verdict : std::uint8_t {
    kGood,
    kDamaged,  // another version may do
    kRefused,  // the caller's own trouble: no other version helps
  };
  struct Choice {
    // kLookAgain: the ranks see different versions; each lists them again and answers with look_again().
    enum class Kind : std::uint8_t { kTry, kDone, kNothing, kLookAgain, kFailed };
    Kind kind = Kind::kFailed;
    VersionName version;                   // kTry: this one; kDone: the one tried last
    std::vector<std::string> damaged;      // one sentence for each version passed over so far
    std::vector<VersionName> passed_over;  // these versions
    std::uint64_t round = 0;               // of this restore
    std::uint64_t announcements = 0;       // kDone: Fleet::announcements() of the leader
    Error error;                           // kFailed: the same on all ranks
    // Of the leader.
    std::vector<std::string> unseen;  // kTry: one sentence for each older version that some ranks do not see
    std::vector<VersionName> seen;    // kDone: what any rank sees, but for what was passed over
  };

  // They wait for the others, at most a few time-outs after the last heartbeat. An Error only where the ranks cannot be
  // reached, or do not call restore() at the same time.
  [[nodiscard]] Result<Choice> begin(const Offer& offer);
  [[nodiscard]] Result<Choice> next(Verdict verdict, const Error& error);  // about the version chosen last
  [[nodiscard]] Result<Choice> look_again(const Offer& offer);

  // This rank has read a part of the version it tries: the others go on waiting.
  void came_further();

 private:
  // What ranks say, by rank.
  using Words = std::map<std::uint32_t, Json>;

  [[nodiscard]] Topic topic(std::string box) const;
  // One look at what there is, without waiting.
  [[nodiscard]] Result<bool> look(const Topic& topic, const std::vector<std::uint32_t>& ranks,
                                  const Coordinator::Take& take);
  [[nodiscard]] Status hear_offers(const std::string& box, std::vector<std::uint32_t> ranks, const Patience& patience,
                                   Words& words);
  // Each tells this rank's word. They answer to the leader everybody's, without those who are silent; to the others
  // none.
  [[nodiscard]] Result<Words> gather_offers(Json own);
  [[nodiscard]] Result<Words> gather_words(const char* name, Json own);
  [[nodiscard]] std::vector<std::uint32_t> all_but(const std::vector<std::uint32_t>& ranks) const;

  void open_round(std::uint64_t round);
  [[nodiscard]] Result<Choice> open(const Offer& offer);
  [[nodiscard]] Result<Choice> judge(Verdict verdict, const Error& error);
  [[nodiscard]] Result<Choice> tell(Choice choice);  // the leader's
  [[nodiscard]] Result<Choice> tell_first(Choice choice, const Words& words);
  [[nodiscard]] Result<Choice> listen(int quarters);
  [[nodiscard]] Result<Choice> listen_first();
  [[nodiscard]] Choice choose(const Offer& own, const Words& words);  // by what all ranks offer
  [[nodiscard]] Choice pick_next();
  [[nodiscard]] Result<Choice> paused(Choice choice);  // before all look again
  [[nodiscard]] static Choice failed(Error error);
  [[nodiscard]] Error silent(const std::vector<std::uint32_t>& ranks, const char* what, int quarters) const;
  [[nodiscard]] std::string only_some_see(const VersionName& version, const std::vector<std::uint32_t>& ranks) const;

  const Fleet& fleet_;
  Coordinator& coordinator_;
  const Clock& clock_;
  RestoreCalls& calls_;

  std::uint64_t call_ = 0;              // of this rank
  std::uint64_t round_ = 0;             // of the leader; 0: not known yet
  std::optional<SignsOfLife> signs_;    // once the round is known
  std::uint32_t turn_ = 1;              // questions so far that all ranks have answered, with this one
  std::vector<std::uint32_t> missing_;  // of this rank's groups, when it looked for their offers

  // Of the leader.
  std::map<VersionName, std::vector<std::uint32_t>> seen_by_;  // what may be tried
  std::optional<VersionName> trying_;                          // chosen last
  std::vector<std::string> damaged_;
  std::vector<VersionName> passed_over_;
  unsigned looks_ = 0;  // that all ranks have taken again
};

}  // namespace slackwater
