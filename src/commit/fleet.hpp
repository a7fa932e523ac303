// Fleet: the ranks of one run, as one of them sees them. Rank 0 leads. The others speak to it through a tree of groups
// (rank_tree.hpp), whose speakers make one ballot out of those they hear.
//   gather -> attempt -> for each step: vote, up the tree -> outcome
// Nothing here decides: the decision is the manifest (VersionStore::decide); an outcome only tells of it. Owned by the
// Engine, which makes none where the world is one rank. Thread rule: one thread at a time for one step; gather() and
// the attempt belong to sw-plan and restore(), which do not run at once; the rest to sw-commit. Lifetime: what it is
// given outlives it.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "commit/attempt.hpp"
#include "commit/ballot.hpp"
#include "commit/coordinator.hpp"
#include "commit/merged_index.hpp"
#include "commit/rank_tree.hpp"
#include "os/file_system.hpp"
#include "slackwater/error.hpp"

namespace slackwater {

struct FleetOptions {
  std::uint32_t rank = 0;
  std::uint32_t world = 1;
  std::uint32_t fan_in = 64;
  // For the ballots of a group; who waits for those who wait has a little more.
  std::chrono::milliseconds timeout{60'000};
  RankFiles files = {};  // where the records lie
};

// How a step ended: committed, or with this error on every rank.
struct Outcome {
  std::optional<Error> error;
};

// The error that every rank gives for a step that was given up.
[[nodiscard]] Error aborted_everywhere(std::uint64_t step, const std::string& reason, const std::string& path);

class Fleet {
 public:
  Fleet(const FleetOptions& options, Coordinator& coordinator, FileSystem& fs, const Clock& clock);

  [[nodiscard]] bool leads() const { return options_.rank == 0; }
  [[nodiscard]] const FleetOptions& options() const { return options_; }
  [[nodiscard]] const std::string& id() const { return id_; }

  [[nodiscard]] const RankTree& tree() const { return tree_; }

  // Each member's id, by rank. Waits for the others the first time.
  [[nodiscard]] Result<std::vector<std::string>> gather(const std::stop_token& stop);

  // The attempt this run goes on under after its `epoch`th restore, or why there was none for the step that needed it:
  // told by the leader, learned by the others.
  [[nodiscard]] Status announce_attempt(std::uint64_t epoch, std::uint64_t step, const Result<Attempt>& attempt);
  [[nodiscard]] Result<std::uint32_t> await_attempt(std::uint64_t epoch, std::uint64_t step,
                                                    const std::stop_token& stop);

  // Casts this rank's ballot, together with those of the ranks it speaks for, their parts of the index made one. Answers
  // to the leader what all ranks said (each record read back and compared), to the others nothing. Does not wait for
  // more ballots once one tells of a failure, a rank has gone on to a later step, or the step was decided without this
  // rank. Ranks that say nothing in time are failures too.
  [[nodiscard]] Result<Ballot> vote(const VersionName& version, const std::string& directory, Ballot own,
                                    IndexLedger& ledger, const std::stop_token& stop);

  // The leader tells how the step ended; a commit also clears away what was told of earlier steps.
  [[nodiscard]] Status announce(const VersionName& version, const Outcome& outcome);
  // nullopt: nobody told in time, or rank 0 has gone on to a later step and will not tell any more.
  [[nodiscard]] Result<std::optional<Outcome>> await_outcome(const VersionName& version, const std::stop_token& stop);
  // For the others, once they know that the step is committed: takes back this rank's own words about it. Not after an
  // abort: the speaker of the group may not have read them yet, and would wait for them. They go with the next commit.
  void forget(const VersionName& version);

  // The `number`th turn to save (save_turns.hpp) under this attempt: told by the leader, awaited by the others.
  // kAlreadyExists: it was told before, though perhaps nobody could confirm it; await_turn() has what was said.
  [[nodiscard]] Status announce_turn(std::uint32_t attempt, std::uint64_t number, std::uint64_t from);
  [[nodiscard]] Result<std::uint64_t> await_turn(std::uint32_t attempt, std::uint64_t number,
                                                 const std::stop_token& stop);

  [[nodiscard]] Patience patience(const std::stop_token& stop, int quarters = 4) const;  // quarters of the time-out
  // For those whom this rank hears on level 1, 2 and so on, all from now on: with each level a little more, and a quarter
  // of the time-out on the highest of the tree.
  [[nodiscard]] std::vector<Patience> patience_by_level(const std::stop_token& stop) const;

 private:
  [[nodiscard]] Topic votes(const VersionName& version, unsigned level) const;
  [[nodiscard]] Topic own_votes(const VersionName& version) const;  // where this rank speaks
  [[nodiscard]] std::chrono::milliseconds wait_on(unsigned level) const;
  // Adds to `all` what everybody says whom this rank hears.
  [[nodiscard]] Status hear(Ballot& all, const VersionName& version, const std::string& directory,
                            const std::stop_token& stop);
  [[nodiscard]] Status tell(const VersionName& version, const Outcome& outcome);
  [[nodiscard]] Topic attempt_topic(std::uint64_t epoch);
  // One look at what there is, without waiting; as Coordinator::await().
  [[nodiscard]] Result<bool> look(const Topic& topic, const std::vector<std::uint32_t>& ranks,
                                  const std::stop_token& stop, const Coordinator::Take& take);
  // Adds to `ballot` what these ranks say.
  [[nodiscard]] Status add(Ballot& ballot, const Topic& topic, std::vector<std::uint32_t> ranks,
                           const std::string& directory, const Patience& patience, const std::string& silence);
  // Somebody waits at a step that this rank did not save, for an outcome that would never come: he is told.
  void release(const VersionName& left_out, std::uint64_t saved_instead);
  // The step has its decision, whoever made it: what is not heard by now does not matter any more.
  [[nodiscard]] Result<bool> settled(const VersionName& version, const std::string& directory,
                                     const std::stop_token& stop);
  [[nodiscard]] Status check_records(const VersionName& version, Ballot& ballot, const std::string& directory,
                                     const Patience& patience);

  const FleetOptions options_;
  Coordinator& coordinator_;
  FileSystem& fs_;
  const Clock& clock_;
  const std::string id_;
  const RankTree tree_;
  std::vector<std::string> members_;  // empty before gather()
  std::set<VersionName> spoken_;      // of since the newest commit: about which this rank has had its say
  std::uint64_t epoch_ = 0;           // of the announcement heard or made last
  std::uint32_t refusals_ = 0;        // announcements of this epoch so far that brought no attempt
};

}  // namespace slackwater
