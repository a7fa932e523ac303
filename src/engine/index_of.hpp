// The index of one rank's snapshot: every tensor is one box, the whole of it. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "commit/index.hpp"
#include "layout/stream_layout.hpp"

namespace slackwater {

// `rank`: of several, whose tensors are then called as local_name() does.
[[nodiscard]] std::vector<IndexEntry> index_of(const State& state, const SnapshotLayout& layout,
                                               std::optional<std::uint32_t> rank = {});

}  // namespace slackwater
