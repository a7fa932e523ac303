// One rank's part of the index, which is all of it where there is one rank. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "commit/index.hpp"
#include "layout/stream_layout.hpp"

namespace slackwater {

// Tensors of the rank alone are one box, the whole of it; of a global tensor: the boxes that this rank stores. `rank`: of
// several, whose own tensors are then called as local_name() does.
[[nodiscard]] std::vector<IndexEntry> index_of(const State& state, const SnapshotLayout& layout,
                                               std::optional<std::uint32_t> rank = {});

}  // namespace slackwater
