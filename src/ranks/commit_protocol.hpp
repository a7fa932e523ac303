// CommitProtocol: how the ranks of one run agree on each step, as one of them sees it. Rank 0 is the leader. The others
// report to it through a tree of groups (rank_tree.hpp); a group leader merges the votes of its group into one.
//   rendezvous -> attempt -> for each step: votes, up the tree -> decision -> outcome, to all
// A rank that is still writing sends heartbeats (heartbeat.hpp). Group leaders pass them on, and so does rank 0; each
// one restarts the wait for votes or for the outcome. Nothing is decided here: the manifest is the decision
// (VersionStore::decide), and an outcome only reports it.
// Owned by EngineShared, which makes none if there is one rank. Lifetime: what it is given outlives it.
// Thread rule: one thread at a time for one step. rendezvous() and the attempt belong to sw-plan and restore(), which
// do not run at the same time; turns belong to sw-turn; the rest belongs to sw-commit.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <vector>

#include "os/file_system.hpp"
#include "ranks/heartbeat.hpp"
#include "ranks/merged_index.hpp"
#include "ranks/rank_transport.hpp"
#include "ranks/rank_tree.hpp"
#include "ranks/vote.hpp"
#include "slackwater/error.hpp"
#include "version/attempt.hpp"

namespace slackwater {

struct CommitProtocolOptions {
  std::uint32_t rank = 0;
  std::uint32_t world = 1;
  std::uint32_t fan_in = 64;
  // How long a group leader waits for the votes of its group. Higher levels get a little more.
  std::chrono::milliseconds timeout{60'000};
  RankFiles files = {};                        // where the records are
  bool node_local = false;                     // each node has a directory of its own
  std::function<void()> on_heartbeat = [] {};  // another rank is still saving; called by sw-commit
};

// What a run continues from: the last restore that all ranks finished together.
struct RestoredFrom {
  std::uint64_t round = 0;  // numbered by rank 0; 0: there was none
  VersionName version;
};

// The attempt that rank 0 has announced.
struct AnnouncedAttempt {
  std::uint32_t number = 0;
  std::optional<Error> error;  // set if it is not meant for this rank, which continues from another restore
  std::string text = {};       // node_local: the attempt file
};

// How a step ended: committed, or with this error on every rank.
struct Outcome {
  std::optional<Error> error;
  bool replicas_differ = false;  // the reason: the next steps compare every byte of the replicas, until they are equal
  // node_local: what rank 0 wrote. The index is left out if it is that of the last commit.
  std::string manifest_text = {};
  std::string index_text = {};
};

// The error that every rank reports for a step that was given up.
[[nodiscard]] Error aborted_everywhere(std::uint64_t step, const std::string& reason, const std::string& path);

class CommitProtocol {
 public:
  CommitProtocol(const CommitProtocolOptions& options, RankTransport& transport, FileSystem& fs, const Clock& clock);

  [[nodiscard]] bool is_rank_0() const { return options_.rank == 0; }
  [[nodiscard]] const CommitProtocolOptions& options() const { return options_; }
  [[nodiscard]] const std::string& id() const { return id_; }  // random, of this start of this rank
  [[nodiscard]] const RankTree& tree() const { return tree_; }

  // Returns each member's id, by rank. The first call waits for the others.
  [[nodiscard]] Result<std::vector<std::string>> rendezvous(const std::stop_token& stop);

  // The attempt that this run goes on under, or why there is none for the step that needed one. The leader announces
  // it, the others wait for it. An announcement names the restore it belongs to, so that a rank whose own restore ended
  // differently does not accept it. `known`: the attempt that this rank has (0: none). It is returned at once unless
  // the leader has announced another one since.
  [[nodiscard]] Status announce_attempt(std::uint64_t step, const Result<Attempt>& attempt);
  [[nodiscard]] Result<AnnouncedAttempt> await_attempt(std::uint64_t step, std::uint32_t known,
                                                       const std::stop_token& stop);

  // A restore of all ranks. After begin_restore(), this rank does not know how the restore ended for the others until
  // fail_restore() or finish_restore(). If neither comes, the next save asks rank 0 which attempt it goes on under.
  void begin_restore() { unsure_ = true; }
  void fail_restore() { unsure_ = false; }  // it failed on all ranks: everything is as it was
  // `announcements`: the number of attempts that the leader had announced by then. They belong to what was before.
  void finish_restore(const RestoredFrom& from, std::uint64_t announcements);
  [[nodiscard]] bool unsure() const { return unsure_; }
  [[nodiscard]] std::uint64_t announcements() const { return announcements_; }

  // Heartbeats of a rank that is still saving. Call begin_step() when this rank starts to commit the next step.
  // `moved`: bytes were staged, written or synced since the last call. If not, only a heartbeat that is owed is sent.
  void begin_step() { heartbeat_.begin(); }
  void note_progress(bool moved) { moved ? heartbeat_.note_progress() : heartbeat_.send_owed(); }

  // Collects the votes of the ranks that this one leads (VoteCollector), merges them and their parts of the index
  // with its own, and sends the result to its parent. The leader gets the vote of all ranks; the others get an empty
  // one.
  [[nodiscard]] Result<Vote> vote(const VersionName& version, const std::string& directory, Vote own,
                                  IndexCache& index_cache, const std::stop_token& stop);

  // The leader announces how the step ended. A commit also removes the messages of earlier steps.
  [[nodiscard]] Status announce(const VersionName& version, const Outcome& outcome);
  // nullopt: there was no outcome in time, or rank 0 has gone on to a later step and will not announce this one.
  [[nodiscard]] Result<std::optional<Outcome>> await_outcome(const VersionName& version, const std::stop_token& stop);
  // For the others, once they know that the step is committed: removes this rank's vote. Not after an abort: the group
  // leader may not have read the vote yet, and would wait for it. It is removed with the next commit.
  void forget(const VersionName& version);

  // The `number`th turn to save (skip_schedule.hpp) under this attempt. The leader announces it, the others wait for
  // it. kAlreadyExists: it was announced before, perhaps without a confirmation; await_turn() returns what was
  // announced.
  [[nodiscard]] Status announce_turn(std::uint32_t attempt, std::uint64_t number, std::uint64_t from);
  [[nodiscard]] Result<std::uint64_t> await_turn(std::uint32_t attempt, std::uint64_t number,
                                                 const std::stop_token& stop);

  [[nodiscard]] Deadline deadline(const std::stop_token& stop, int quarters = 4) const;  // quarters of the time-out
  // The deadlines for this rank's children on level 1, 2 and so on, all counted from now.
  [[nodiscard]] std::vector<Deadline> deadlines_by_level(const std::stop_token& stop) const;
  // As poll_once() in poll.hpp.
  [[nodiscard]] Result<bool> poll_once(const Topic& topic, const std::vector<std::uint32_t>& ranks,
                                       const std::stop_token& stop, const RankTransport::Take& take) const;

 private:
  void release(const VersionName& left_out, std::uint64_t saved);

  // Constant after construction.
  const CommitProtocolOptions options_;
  RankTransport& transport_;
  FileSystem& fs_;
  const Clock& clock_;
  const std::string id_;
  const RankTree tree_;

  // Used by sw-plan and restore().
  std::vector<std::string> members_;  // empty before rendezvous()
  RestoredFrom from_;
  std::uint64_t announcements_ = 0;  // leader: attempts announced so far; others: those that do not matter any more
  bool unsure_ = false;

  // Used by sw-commit.
  Heartbeat heartbeat_;
  std::set<VersionName> answered_;  // steps since the newest commit for which this rank has voted or sent a failure
};

}  // namespace slackwater
