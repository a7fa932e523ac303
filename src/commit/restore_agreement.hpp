// RestoreAgreement: all ranks restore the same version, or none. Each offers what it sees; the leader names one; each
// tries it and says how that went; the leader names the next, or declares it done. A version that one rank lacks or
// finds damaged is passed over by all. Speakers gather what their groups say, as for a commit. Made for one restore.
// Thread rule: one thread (the trainer's, inside restore()).
// Lifetime: what it is given outlives it.
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

class RestoreAgreement {
 public:
  // `round`: how many restores of this run came before, the same on all ranks.
  RestoreAgreement(const Fleet& fleet, Coordinator& coordinator, SignsOfLife& signs, std::uint64_t round);

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
    enum class Kind : std::uint8_t { kTry, kDone, kNothing, kFailed };
    Kind kind = Kind::kFailed;
    VersionName version;               // kTry: this one; kDone: the one tried last
    std::vector<std::string> damaged;  // one sentence for each version passed over so far
    Error error;                       // kFailed: the same on all ranks
  };

  // Both wait for the others, at most a few time-outs after the last sign of life. An Error only where the ranks cannot be reached.
  [[nodiscard]] Result<Choice> begin(const Offer& offer);
  [[nodiscard]] Result<Choice> next(Verdict verdict, const Error& error);  // about the version chosen last

 private:
  [[nodiscard]] Topic topic(std::string box) const;
  // Tells this rank's word. Answers to the leader everybody's, by rank, without those who are silent; to the others none.
  using Words = std::map<std::uint32_t, Json>;
  [[nodiscard]] Result<Words> gather_words(const char* name, Json own);
  [[nodiscard]] std::vector<std::uint32_t> all_but(const std::vector<std::uint32_t>& ranks) const;
  [[nodiscard]] Result<Choice> tell(Choice choice);  // the leader's
  [[nodiscard]] Result<Choice> listen(int quarters);
  [[nodiscard]] Choice choose(const Offer& own, const Words& words);  // the first, by what all ranks offer
  [[nodiscard]] Choice pick_next();
  [[nodiscard]] static Choice failed(Error error);
  [[nodiscard]] Error silent(const std::vector<std::uint32_t>& ranks, const char* what) const;

  const Fleet& fleet_;
  Coordinator& coordinator_;
  SignsOfLife& signs_;
  const std::uint64_t round_;

  std::uint32_t turn_ = 0;             // choices made so far
  std::vector<VersionName> to_try_;    // of the leader: oldest first
  std::optional<VersionName> trying_;  // chosen last
  std::vector<std::string> damaged_;   // of the leader
};

}  // namespace slackwater
