// The index of one rank's snapshot: every tensor is one box, the whole of it. Pure.
#pragma once

#include <vector>

#include "commit/index.hpp"
#include "layout/stream_layout.hpp"

namespace slackwater {

[[nodiscard]] std::vector<IndexEntry> index_of(const State& state, const SnapshotLayout& layout);

}  // namespace slackwater
