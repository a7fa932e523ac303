#include "engine/index_of.hpp"

#include "commit/names.hpp"

namespace slackwater {

std::vector<IndexEntry> index_of(const State& state, const SnapshotLayout& layout, std::optional<std::uint32_t> rank) {
  const auto name_of = [&](const Tensor& tensor) { return rank ? local_name(*rank, tensor.name) : tensor.name; };
  std::vector<IndexEntry> entries;
  entries.reserve(state.tensors.size());
  for (const StreamLayout& part : layout.parts) {
    for (const Extent& extent : part.extents()) {
      if (extent.tensor == kTreeSource) continue;
      const Tensor& tensor = state.tensors[extent.tensor];
      entries.push_back(IndexEntry{.name = name_of(tensor),
                                   .dtype = tensor.dtype,
                                   .shape = tensor.shape,
                                   .alias_of = {},
                                   .shards = {IndexShard{.box_offset = std::vector<std::int64_t>(tensor.shape.size()),
                                                         .box_shape = tensor.shape,
                                                         .file = part.file_name(),
                                                         .offset = extent.offset,
                                                         .size_bytes = extent.size_bytes}}});
    }
  }
  for (const auto& [alias, stored] : layout.aliases) {
    const Tensor& tensor = state.tensors[alias];
    entries.push_back(IndexEntry{.name = name_of(tensor),
                                 .dtype = tensor.dtype,
                                 .shape = tensor.shape,
                                 .alias_of = name_of(state.tensors[stored]),
                                 .shards = {}});
  }
  return entries;
}

}  // namespace slackwater
