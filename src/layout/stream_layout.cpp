#include "layout/stream_layout.hpp"

#include <algorithm>
#include <utility>

namespace slackwater {

StreamLayout::StreamLayout(std::string file_name, std::string header, std::vector<Extent> extents)
    : file_name_(std::move(file_name)),
      header_(std::move(header)),
      extents_(std::move(extents)),
      size_bytes_(extents_.empty() ? header_.size() : extents_.back().offset + extents_.back().size_bytes) {}

std::uint64_t StreamLayout::window_count(std::uint64_t slab_bytes) const {
  return size_bytes_ / slab_bytes + (size_bytes_ % slab_bytes != 0 ? 1 : 0);
}

std::uint64_t StreamLayout::window_bytes(std::uint64_t index, std::uint64_t slab_bytes) const {
  return std::min(slab_bytes, size_bytes_ - index * slab_bytes);
}

void StreamLayout::window_pieces(std::uint64_t index, std::uint64_t slab_bytes,
                                 std::vector<WindowPiece>& pieces) const {
  const std::uint64_t begin = index * slab_bytes;
  const std::uint64_t end = begin + window_bytes(index, slab_bytes);
  // Extents follow one another without holes, so their ends are in order as well.
  auto extent = std::partition_point(extents_.begin(), extents_.end(),
                                     [&](const Extent& e) { return e.offset + e.size_bytes <= begin; });
  for (; extent != extents_.end() && extent->offset < end; ++extent) {
    if (extent->size_bytes == 0) continue;
    const std::uint64_t first = std::max(begin, extent->offset);
    const std::uint64_t last = std::min(end, extent->offset + extent->size_bytes);
    pieces.push_back({extent->tensor, first - extent->offset, first - begin, last - first});
  }
}

}  // namespace slackwater
