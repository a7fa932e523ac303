// Fleet: the ranks of one run, as one of them sees them. Rank 0 leads. The others speak to it through a tree of groups
// (rank_tree.hpp), whose speakers make one ballot out of those they hear.
//   gather -> attempt -> for each step: vote, up the tree -> outcome
// A rank that still writes sends heartbeats (signs_of_life.hpp), which group leaders pass on, and so does rank 0: every
// wait for votes or for the outcome starts again with each. Nothing here decides: the decision is the manifest
// (VersionStore::decide); an outcome only tells of it. Owned by the Engine, which makes none where the world is one
// rank. Thread rule: one thread at a time for one step; gather() and the attempt belong to sw-plan and restore(), which
// do not run at once; the rest to sw-commit. Lifetime: what it is given outlives it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
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
#include "commit/signs_of_life.hpp"
#include "os/file_system.hpp"
#include "slackwater/error.hpp"

namespace slackwater {

struct FleetOptions {
  std::uint32_t rank = 0;
  std::uint32_t world = 1;
  std::uint32_t fan_in = 64;
  // For the ballots of a group; who waits for those who wait has a little more.
  std::chrono::milliseconds timeout{60'000};
  RankFiles files = {};                        // where the records lie
  std::function<void()> on_heartbeat = [] {};  // another rank is still saving; called by sw-commit
};

// What a run goes on from: the restore that all ranks finished together last.
struct RestoredFrom {
  std::uint64_t round = 0;  // as rank 0 numbers them; 0: there was none
  VersionName version;
};

// What rank 0 has said about the attempt to save under.
struct AnnouncedAttempt {
  std::uint32_t number = 0;
  std::optional<Error> error;  // it is not meant for this rank, which goes on from another restore
};

// How a step ended: committed, or with this error on every rank.
struct Outcome {
  std::optional<Error> error;
  bool replicas_differ = false;  // that is why: the next steps compare every byte of them, until they are alike
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

  // The attempt this run goes on under, or why there was none for the step that needed it: told by the leader, learned
  // by the others. An announcement says which restore it belongs to, so that a rank whose own restore ended otherwise
  // does not take it for its own. `known`: the attempt this rank has; answered again, without a wait, unless the leader
  // has announced another since. 0: none.
  [[nodiscard]] Status announce_attempt(std::uint64_t step, const Result<Attempt>& attempt);
  [[nodiscard]] Result<AnnouncedAttempt> await_attempt(std::uint64_t step, std::uint32_t known,
                                                       const std::stop_token& stop);

  // A restore of all ranks. Between begin_restore() and one of the others this rank does not know how it ended for the
  // rest: if that lasts, the next save asks rank 0 which attempt it goes on under.
  void begin_restore() { unsure_ = true; }
  void fail_restore() { unsure_ = false; }  // on all ranks: everything is as it was
  // `announcements`: of attempts that the leader had made by then; they belong to what was before.
  void finish_restore(const RestoredFrom& from, std::uint64_t announcements);
  [[nodiscard]] bool unsure() const { return unsure_; }
  [[nodiscard]] std::uint64_t announcements() const { return announcements_; }

  // Heartbeats of a rank that is still saving. begin_step(): the next step is this rank's to commit. came_further():
  // `moved`: bytes were staged, written or synced since the last call; if not, only a heartbeat that is owed is sent.
  void begin_step() { heartbeats_.begin(); }
  void came_further(bool moved) { moved ? heartbeats_.show() : heartbeats_.show_owed(); }

  // Casts this rank's ballot, together with those of the ranks it speaks for, their parts of the index made one. Answers
  // to the leader what all ranks said (each record read back and compared), to the others nothing. Does not wait for
  // more ballots once one tells of a failure, a rank has gone on to a later step, or the step was decided without this
  // rank. Ranks that say nothing in time, and send no heartbeat, are failures too.
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
  [[nodiscard]] std::optional<Error> not_ours(const RestoredFrom& theirs) const;
  // One look at what there is, without waiting; as Coordinator::await().
  [[nodiscard]] Result<bool> look(const Topic& topic, const std::vector<std::uint32_t>& ranks,
                                  const std::stop_token& stop, const Coordinator::Take& take);
  // Adds to `ballot` what the ranks say whom this rank hears on this level.
  [[nodiscard]] Status add(Ballot& ballot, const VersionName& version, unsigned level, const std::string& directory,
                           const Patience& patience);
  [[nodiscard]] std::string silence(std::uint32_t rank, unsigned level, TimePoint began) const;
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
  SignsOfLife heartbeats_;            // of sw-commit
  RestoredFrom from_;
  std::uint64_t announcements_ = 0;  // of attempts: made so far; of the others: those that do not matter any more
  bool unsure_ = false;
};

}  // namespace slackwater
