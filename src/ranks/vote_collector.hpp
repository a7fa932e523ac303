// BallotCollector: collects the ballots of the ranks that a group leader leads, for one version, level by level. It
// also reads the records of its own group back, because a record must be readable for others, not only in its writer's
// cache. It gives up early if waiting has become pointless: a ballot reports a failure, a rank has gone on to a later
// step, or the step was decided without this rank. A rank that neither votes nor sends a heartbeat in time counts as a
// failure. Made by CommitProtocol::vote() for one vote. Thread rule: one thread (sw-commit). Lifetime: what it is given
// outlives it.
#pragma once

#include <cstdint>
#include <functional>
#include <stop_token>
#include <string>

#include "os/file_system.hpp"
#include "ranks/ballot.hpp"
#include "ranks/heartbeat.hpp"
#include "ranks/rank_tree.hpp"
#include "slackwater/error.hpp"
#include "version/names.hpp"

namespace slackwater {

class CommitProtocol;

// The channel on which the children on this level vote. A rank's own vote goes to level height() + 1.
[[nodiscard]] Topic vote_topic(const RankTree& tree, const VersionName& version, unsigned level);
[[nodiscard]] Topic outcome_topic(const VersionName& version);
// Why a rank has no ballot for a step: it saved this one instead.
[[nodiscard]] std::string saved_instead(std::uint64_t step);

class BallotCollector {
 public:
  // A child waits for the outcome of `step`, which this rank did not save.
  using Release = std::function<void(const VersionName& step)>;
  BallotCollector(const CommitProtocol& protocol, RankTransport& transport, FileSystem& fs, Heartbeat& heartbeat,
                  Release release);

  // Merges the ballots of all ranks that this one leads into `all`.
  [[nodiscard]] Status collect(Ballot& all, const VersionName& version, const std::string& directory,
                               const std::stop_token& stop);

 private:
  [[nodiscard]] Status collect_level(Ballot& all, const VersionName& version, unsigned level,
                                     const std::string& directory, const Deadline& deadline);
  [[nodiscard]] std::string describe_silence(std::uint32_t rank, unsigned level, TimePoint began) const;
  // Whether the step has its decision, whoever made it. What is missing by then does not matter any more.
  [[nodiscard]] Result<bool> settled(const VersionName& version, const std::string& directory,
                                     const std::stop_token& stop);
  [[nodiscard]] Status check_records(Ballot& all, const VersionName& version, const std::string& directory,
                                     const Deadline& deadline);

  const CommitProtocol& protocol_;
  RankTransport& transport_;
  FileSystem& fs_;
  Heartbeat& heartbeat_;
  const Release release_;
};

}  // namespace slackwater
