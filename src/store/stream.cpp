#include "store/stream.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "base/digest.hpp"
#include "base/units.hpp"

namespace slackwater {

Stream::Stream(StreamWriter::StreamId stream_id, StreamSpec stream_spec)
    : id(stream_id),
      spec(std::move(stream_spec)),
      block_digests(round_up(spec.size_bytes, kBlockBytes) / kBlockBytes),
      block_given(block_digests.size()) {}

Status Stream::accept(const SlabWrite& piece) {
  const std::uint64_t begin = piece.offset;
  const std::uint64_t size = piece.size_bytes;
  const bool inside = begin < spec.size_bytes && size > 0 && size <= spec.size_bytes - begin;
  const bool whole_blocks = begin % kBlockBytes == 0 && (size % kBlockBytes == 0 || begin + size == spec.size_bytes);
  const bool backed = piece.memory.size() >= round_up(size, kDirectAlignment);
  if (!inside || !whole_blocks || !backed) {
    return fail(ErrorKind::kInternal,
                fmt::format("a slab of {} bytes at {} does not fit a stream of {} bytes", size, begin, spec.size_bytes),
                spec.path);
  }
  for (std::uint64_t block = begin / kBlockBytes; block * kBlockBytes < begin + size; ++block) {
    if (block_given[block]) {
      return fail(ErrorKind::kInternal, fmt::format("block {} was given to the writer twice", block), spec.path);
    }
    block_given[block] = true;
  }
  return {};
}

void Stream::hash_block(Slab& slab) {
  const std::uint64_t size = std::min(kBlockBytes, slab.write.size_bytes - slab.hashed_bytes);
  const std::uint64_t block = (slab.write.offset + slab.hashed_bytes) / kBlockBytes;
  block_digests[block] = digest64(slab.write.memory.subspan(slab.hashed_bytes, size));
  slab.hashed_bytes += size;
  hashed_bytes += size;
}

}  // namespace slackwater
