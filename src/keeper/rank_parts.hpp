// RankPart: what one rank's keeper holds of a version. With the parts of all ranks, whoever has them knows what a
// commit of the version would write. Plain values and pure functions.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "keeper/region.hpp"
#include "slackwater/error.hpp"
#include "version/manifest.hpp"

namespace slackwater {

struct RankPart {
  std::shared_ptr<const Region> region;
  std::uint32_t entry = 0;  // of the region
  StagedVersion version;
};

struct PartsCommit {
  Manifest manifest;  // a commit, with the records of all ranks
  std::string index;
};

// `parts`: of all ranks, in order. With several ranks, what a commit would compare is compared here. kMismatch: the
// ranks do not fit together. kCorrupt: the texts contradict each other. kUnsupported: parts are missing. `where` is for
// messages.
[[nodiscard]] Result<PartsCommit> commit_of(std::span<const RankPart> parts, const std::string& where);

}  // namespace slackwater
