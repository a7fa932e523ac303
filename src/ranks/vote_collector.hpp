// VoteCollector: collects the votes of the ranks that a group leader leads, for one version, level by level. It also
// reads the records of its own group back, because a record must be readable for others, not only in its writer's
// cache. It gives up early if waiting has become pointless: a vote reports a failure, a rank has gone on to a later
// step, or the step was decided without this rank. A rank that neither votes nor sends a heartbeat in time is reported
// as failed.
// Made by CommitProtocol::vote() for one vote. Thread rule: one thread (sw-commit). Lifetime: what it is given outlives
// it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <stop_token>
#include <string>
#include <vector>

#include "os/file_system.hpp"
#include "ranks/heartbeat.hpp"
#include "ranks/rank_tree.hpp"
#include "ranks/vote.hpp"
#include "slackwater/error.hpp"
#include "version/names.hpp"

namespace slackwater {

// The deadlines for a rank's children on level 1, 2 and so on, all counted from `now`.
[[nodiscard]] std::vector<Deadline> deadlines_by_level(const RankTree& tree, std::chrono::milliseconds timeout,
                                                       TimePoint now, const std::stop_token& stop);

class VoteCollector {
 public:
  struct Options {
    std::uint32_t rank = 0;
    std::chrono::milliseconds timeout{};  // how long to wait for the votes of level 1
    RankFiles files = {};                 // where the records are
    bool reads_records = true;            // false: they are in the directories of other nodes
  };
  // A child waits for the outcome of `step`, which this rank did not save.
  using Release = std::function<void(const VersionName& step)>;
  VoteCollector(const Options& options, const RankTree& tree, RankTransport& transport, FileSystem& fs,
                Heartbeat& heartbeat, Release release);

  // Merges the votes of all ranks that this one leads into `all`.
  [[nodiscard]] Status collect(Vote& all, const VersionName& version, const std::string& directory,
                               const std::stop_token& stop);

 private:
  [[nodiscard]] Status collect_level(Vote& all, const VersionName& version, unsigned level,
                                     const std::string& directory, const Deadline& deadline);
  [[nodiscard]] std::string describe_silence(std::uint32_t rank, unsigned level, TimePoint began) const;
  // Whether the step has its decision, whoever made it. What is missing by then does not matter any more.
  [[nodiscard]] Result<bool> settled(const VersionName& version, const std::string& directory,
                                     const std::stop_token& stop);
  [[nodiscard]] Status check_records(Vote& all, const VersionName& version, const std::string& directory,
                                     const Deadline& deadline);

  const Options options_;
  const RankTree& tree_;
  RankTransport& transport_;
  FileSystem& fs_;
  Heartbeat& heartbeat_;
  const Release release_;
};

}  // namespace slackwater
