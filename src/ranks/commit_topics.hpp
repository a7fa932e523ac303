// The topics of the commit protocol's messages (rank_transport.hpp), and a reason that two of its parts state.
// Pure functions.
#pragma once

#include <cstdint>
#include <string>

#include <fmt/format.h>

#include "ranks/rank_transport.hpp"
#include "ranks/rank_tree.hpp"
#include "version/names.hpp"

namespace slackwater {

// Each announcement of an attempt has a number of its own, which only rank 0 counts. (The attempt in a topic must not
// be 0: a store does not remember the latest message under that.)
[[nodiscard]] inline Topic attempt_topic(std::uint64_t number) { return {"attempts", 1, number}; }

// The channel on which the children on this level vote. A rank's own vote goes to level height() + 1.
[[nodiscard]] inline Topic vote_topic(const RankTree& tree, const VersionName& version, unsigned level) {
  return {tree.channel("votes", level), version.attempt, version.step};
}
[[nodiscard]] inline Topic outcome_topic(const VersionName& version) {
  return {"outcomes", version.attempt, version.step};
}
[[nodiscard]] inline Topic turn_topic(std::uint32_t attempt, std::uint64_t number) {
  return {"turns", attempt, number};
}

// Why a rank has no vote for a step: it saved this one instead.
[[nodiscard]] inline std::string saved_instead(std::uint64_t step) {
  return fmt::format("saved step {} instead; save the same steps on all ranks", step);
}

}  // namespace slackwater
