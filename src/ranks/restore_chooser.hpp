// RestoreChooser: how the leader chooses the version that all ranks restore. It takes the newest one that any rank
// sees. A version is skipped only if a rank finds it damaged. One that only some ranks see is not damaged: all ranks
// list the versions again a few times, and if that does not help, the restore fails. (Skipping it would lose it once
// the run goes on from an older one.)
// Owned by a RestoreProtocol, for one restore. Thread rule: one thread. Does no I/O.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "os/clock.hpp"
#include "ranks/restore_messages.hpp"

namespace slackwater {

// The error for ranks that were silent for this many quarters of the time-out. `what`: "did not call restore".
[[nodiscard]] Error silent_ranks(const std::vector<std::uint32_t>& ranks, const char* what,
                                 std::chrono::milliseconds timeout, int quarters);

class RestoreChooser {
 public:
  RestoreChooser(std::uint32_t world, std::chrono::milliseconds timeout) : world_(world), timeout_(timeout) {}

  // By what the ranks offer. `step`: the one that the leader's own caller asked for.
  [[nodiscard]] RestoreChoice choose(const std::optional<std::uint64_t>& step, const RankReports& offers,
                                     const std::string& where);
  // By what the ranks found when they tried the last choice.
  [[nodiscard]] RestoreChoice judge(const RankReports& verdicts, const std::string& where);

  // How long to pause before all ranks list the versions again. It doubles each time.
  [[nodiscard]] Duration pause() const;

 private:
  [[nodiscard]] RestoreChoice pick();
  [[nodiscard]] RestoreChoice complete(RestoreChoice choice) const;
  [[nodiscard]] RestoreChoice failed(Error error) const;
  [[nodiscard]] std::string only_some_see(const VersionName& version, const std::vector<std::uint32_t>& ranks) const;

  const std::uint32_t world_;
  const std::chrono::milliseconds timeout_;

  std::map<VersionName, std::vector<std::uint32_t>>
      seen_by_;                       // the versions that may be tried, and the ranks that see them
  VersionName trying_;                // the last choice
  std::vector<std::string> damaged_;  // one sentence for each version in skipped_
  std::vector<VersionName> skipped_;
  unsigned listings_ = 0;  // how often all ranks were asked to list again
};

}  // namespace slackwater
