#include "store/pending_file.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "base/digest.hpp"
#include "base/units.hpp"

namespace slackwater {

PendingFile::PendingFile(FileWriter::FileId file_id, FileSpec file_spec)
    : id(file_id),
      spec(std::move(file_spec)),
      block_digests(round_up(spec.size_bytes, kBlockBytes) / kBlockBytes),
      block_given(block_digests.size()) {}

Status PendingFile::accept(const SlabWrite& piece) {
  // A slab comes from the stager, so a bad one is our own bug. It is checked all the same: written to disk it would
  // become a checkpoint with valid digests and wrong bytes.
  const std::uint64_t begin = piece.offset;
  const std::uint64_t size = piece.size_bytes;
  const bool inside = begin < spec.size_bytes && size > 0 && size <= spec.size_bytes - begin;
  const bool whole_blocks = begin % kBlockBytes == 0 && (size % kBlockBytes == 0 || begin + size == spec.size_bytes);
  // A direct write is rounded up; past the end of the memory it would read whatever lies there.
  const bool backed = piece.memory.size() >= round_up(size, kDirectAlignment);
  if (!inside || !whole_blocks || !backed) {
    return fail(ErrorKind::kInternal,
                fmt::format("a slab of {} bytes at {} does not fit a file of {} bytes", size, begin, spec.size_bytes),
                spec.path);
  }
  // The file is complete when the byte counts match. A block that came twice would stand in for one that never came.
  for (std::uint64_t block = begin / kBlockBytes; block * kBlockBytes < begin + size; ++block) {
    if (block_given[block]) {
      return fail(ErrorKind::kInternal, fmt::format("block {} was given to the writer twice", block), spec.path);
    }
    block_given[block] = true;
  }
  return {};
}

void PendingFile::hash_block(Slab& slab) {
  // Exact file bytes only: the zeros behind the end are not part of the file, and a reader does not see them.
  const std::uint64_t size = std::min(kBlockBytes, slab.write.size_bytes - slab.hashed_bytes);
  const std::uint64_t block = (slab.write.offset + slab.hashed_bytes) / kBlockBytes;
  block_digests[block] = digest64(slab.write.memory.subspan(slab.hashed_bytes, size));
  slab.hashed_bytes += size;
  hashed_bytes += size;
}

}  // namespace slackwater
