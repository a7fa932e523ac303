#include "version/index_entries.hpp"

#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "tensor/box.hpp"
#include "version/names.hpp"

namespace slackwater {
namespace {

class Indexing {
 public:
  Indexing(const State& state, std::optional<std::uint32_t> rank) : state_(state), rank_(rank) {
    entries_.reserve(state.tensors.size());
  }

  void add_stored(const FileLayout& part, const Extent& extent) {
    const Tensor& tensor = state_.tensors[extent.tensor];
    entry_of(tensor).shards.push_back(
        {.box_offset = tensor.shard ? tensor.shard->offset : std::vector<std::int64_t>(tensor.shape.size()),
         .box_shape = tensor.shape,
         .file = part.file_name(),
         .offset = extent.offset,
         .size_bytes = extent.size_bytes});
  }

  void add_alias(const Tensor& alias, const Tensor& stored) { entry_of(alias).alias_of = name_of(stored); }

  // A tensor without elements: no rank stores a byte of it, so nothing else would bring it into the index.
  void add_empty(const Tensor& tensor) { static_cast<void>(entry_of(tensor)); }

  std::vector<IndexEntry> take() { return std::move(entries_); }

 private:
  [[nodiscard]] std::string name_of(const Tensor& tensor) const {
    return rank_ && !tensor.shard ? local_name(*rank_, tensor.name) : tensor.name;
  }

  // Boxes of one global tensor share an entry.
  IndexEntry& entry_of(const Tensor& tensor) {
    if (tensor.shard) {
      const auto [known, inserted] = global_.try_emplace(tensor.name, entries_.size());
      if (!inserted) return entries_[known->second];
    }
    return entries_.emplace_back(IndexEntry{.name = name_of(tensor),
                                            .dtype = tensor.dtype,
                                            .shape = tensor.shard ? tensor.shard->global_shape : tensor.shape,
                                            .alias_of = {},
                                            .shards = {}});
  }

  const State& state_;
  const std::optional<std::uint32_t> rank_;
  std::vector<IndexEntry> entries_;
  std::unordered_map<std::string_view, std::size_t> global_;  // position of its entry
};

}  // namespace

std::vector<IndexEntry> index_entries(const State& state, const SnapshotLayout& layout,
                                      std::optional<std::uint32_t> rank) {
  Indexing indexing(state, rank);
  for (const FileLayout& part : layout.parts) {
    for (const Extent& extent : part.extents()) {
      if (extent.tensor != kTreeSource) indexing.add_stored(part, extent);
    }
  }
  for (const auto& [alias, stored] : layout.aliases) indexing.add_alias(state.tensors[alias], state.tensors[stored]);
  for (const Tensor& tensor : state.tensors) {
    if (tensor.shard && volume(tensor.shard->global_shape) == 0) indexing.add_empty(tensor);
  }
  return indexing.take();
}

}  // namespace slackwater
