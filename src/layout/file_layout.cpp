#include "layout/file_layout.hpp"

#include <algorithm>
#include <utility>

namespace slackwater {

FileLayout::FileLayout(std::string file_name, std::string header, std::vector<Extent> extents)
    : file_name_(std::move(file_name)),
      header_(std::move(header)),
      extents_(std::move(extents)),
      size_bytes_(extents_.empty() ? header_.size() : extents_.back().offset + extents_.back().size_bytes) {}

std::uint64_t FileLayout::chunk_count(std::uint64_t slab_bytes) const {
  return size_bytes_ / slab_bytes + (size_bytes_ % slab_bytes != 0 ? 1 : 0);
}

std::uint64_t FileLayout::chunk_bytes(std::uint64_t index, std::uint64_t slab_bytes) const {
  return std::min(slab_bytes, size_bytes_ - index * slab_bytes);
}

void FileLayout::chunk_pieces(std::uint64_t index, std::uint64_t slab_bytes, std::vector<ChunkPiece>& pieces) const {
  const std::uint64_t begin = index * slab_bytes;
  const std::uint64_t end = begin + chunk_bytes(index, slab_bytes);
  // Extents follow one another without gaps, so their ends are sorted, too.
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
