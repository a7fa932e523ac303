#include "stage/window_copy.hpp"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "base/result.hpp"
#include "base/units.hpp"

namespace slackwater {
namespace {

constexpr std::uint64_t kTailMultiple = 4096;  // direct writes are rounded up to this

}  // namespace

Result<std::uint64_t> WindowCopier::copy(const StageJob& job, std::uint32_t part, std::uint64_t index,
                                         std::span<std::byte> slab, CopiedBytes& copied) {
  const StreamLayout& layout = job.layout->parts[part];
  const std::uint64_t begin = index * slab.size();
  const std::uint64_t size = layout.window_bytes(index, slab.size());
  if (const std::string& header = layout.header(); begin < header.size()) {
    std::memcpy(slab.data(), header.data() + begin, std::min<std::uint64_t>(header.size() - begin, slab.size()));
  }
  pieces_.clear();
  layout.window_pieces(index, slab.size(), pieces_);
  SW_TRY(copy_pieces(job, slab));
  std::memset(slab.data() + size, 0, round_up(size, kTailMultiple) - size);
  SW_TRY(check_completed(job, copied));
  return size;
}

Status WindowCopier::copy_pieces(const StageJob& job, std::span<std::byte> slab) {
  // Neighbours on the same device go to it in one call.
  Device* device = nullptr;
  batch_.clear();
  const auto flush = [&]() -> Status {
    if (batch_.empty()) return {};
    Status status = device->copy_to_host(batch_);
    batch_.clear();
    return status;
  };
  for (const WindowPiece& piece : pieces_) {
    std::byte* const to = slab.data() + piece.window_offset;
    if (piece.tensor == kTreeSource) {
      std::memcpy(to, job.tree.data() + piece.tensor_begin, piece.size_bytes);
      continue;
    }
    const Source& source = job.sources[piece.tensor];
    if (source.device != device) {
      SW_TRY(flush());
      device = source.device;
    }
    batch_.push_back({&source.memory, piece.tensor_begin, piece.size_bytes, to});
  }
  return flush();
}

Status WindowCopier::check_completed(const StageJob& job, CopiedBytes& copied) const {
  for (const WindowPiece& piece : pieces_) {
    if (piece.tensor == kTreeSource || piece.size_bytes == 0) continue;
    const Source& source = job.sources[piece.tensor];
    if (!source.guarded) continue;
    const std::uint64_t tensor_bytes = source.memory.size_bytes();
    const std::uint64_t before = copied[piece.tensor].fetch_add(piece.size_bytes, std::memory_order_acq_rel);
    if (before + piece.size_bytes != tensor_bytes) continue;
    SW_ASSIGN(const std::uint64_t now, source.device->fingerprint(source.memory, job.seed, job.whole_fingerprint));
    if (now != source.fingerprint) {
      return fail(
          ErrorKind::kTorn,
          fmt::format("tensor '{}' was written to between save() and the fence; call fence() before changing it, or "
                      "have it captured at once inside save()",
                      job.names[piece.tensor]),
          job.names[piece.tensor]);
    }
  }
  return {};
}

}  // namespace slackwater
