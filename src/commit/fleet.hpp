// Fleet: the ranks of one run, as one of them sees them. Rank 0 leads. Ranks form groups of `fan_in`; the lowest of a
// group speaks for it, so that nobody reads more than a group's ballots and one report for each other group.
//   gather -> attempt -> for each step: vote (-> report) -> outcome
// Nothing here decides: the decision is the manifest (VersionStore::decide); an outcome only tells of it. Owned by the
// Engine, which makes none where the world is one rank. Thread rule: one thread at a time for one step; gather() and
// the attempt belong to sw-plan and restore(), which do not run at once; the rest to sw-commit. Lifetime: what it is
// given outlives it.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "commit/attempt.hpp"
#include "commit/ballot.hpp"
#include "commit/coordinator.hpp"
#include "os/file_system.hpp"
#include "slackwater/error.hpp"

namespace slackwater {

struct FleetOptions {
  std::uint32_t rank = 0;
  std::uint32_t world = 1;
  std::uint32_t fan_in = 64;
  std::chrono::milliseconds timeout{
      60'000};  // for the ballots of a group; who waits for those who wait has a little more
};

// How a step ended: committed, or with this error on every rank.
struct Outcome {
  std::optional<Error> error;
};

class Fleet {
 public:
  Fleet(const FleetOptions& options, Coordinator& coordinator, FileSystem& fs, const Clock& clock);

  [[nodiscard]] bool leads() const { return options_.rank == 0; }
  [[nodiscard]] const FleetOptions& options() const { return options_; }
  [[nodiscard]] const std::string& id() const { return id_; }

  // Each member's id, by rank. Waits for the others the first time.
  [[nodiscard]] Result<std::vector<std::string>> gather(const std::stop_token& stop);

  // The attempt this run goes on under after its `epoch`th restore: told by the leader, learned by the others.
  [[nodiscard]] Status announce_attempt(std::uint64_t epoch, const Attempt& attempt);
  [[nodiscard]] Result<std::uint32_t> await_attempt(std::uint64_t epoch, const std::stop_token& stop);

  // Casts this rank's ballot. Answers to the leader what all ranks said (each record read back and compared), to the
  // others nothing. Does not wait for more ballots once one tells of a failure. Ranks that say nothing in time are
  // failures too.
  [[nodiscard]] Result<Ballot> vote(const VersionName& version, const std::string& directory, Ballot own,
                                    const std::stop_token& stop);

  // The leader tells how the step ended; a commit also clears away what was told of earlier steps.
  [[nodiscard]] Status announce(const VersionName& version, const Outcome& outcome);
  // nullopt: nobody told in time.
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

 private:
  [[nodiscard]] std::uint32_t group_of(std::uint32_t rank) const { return rank / options_.fan_in; }
  [[nodiscard]] Topic votes(const VersionName& version) const;
  // Adds to `ballot` what these ranks say.
  [[nodiscard]] Status add(Ballot& ballot, const Topic& topic, const std::vector<std::uint32_t>& ranks,
                           const Patience& patience, const std::string& silence);
  [[nodiscard]] Status check_records(const VersionName& version, Ballot& ballot, const std::string& directory,
                                     const Patience& patience);

  const FleetOptions options_;
  Coordinator& coordinator_;
  FileSystem& fs_;
  const Clock& clock_;
  const std::string id_;
  std::vector<std::string> members_;  // empty before gather()
};

}  // namespace slackwater
