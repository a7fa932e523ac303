// Makes one rank's part of the index. With one rank, that is the whole index. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "layout/file_layout.hpp"
#include "version/index.hpp"

namespace slackwater {

// A tensor of this rank alone is one box, the whole tensor. A global tensor has the boxes that this rank stores.
// `rank` is given if there are several ranks: the rank's own tensors then get names from local_name().
[[nodiscard]] std::vector<IndexEntry> index_entries(const State& state, const SnapshotLayout& layout,
                                                    std::optional<std::uint32_t> rank = {});

}  // namespace slackwater
