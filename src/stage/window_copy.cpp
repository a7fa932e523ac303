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

Status check_stood_still(const StageJob& job, std::uint32_t tensor) {
  const Source& source = job.sources[tensor];
  bool unchanged = false;
  if (source.passage == kOnHost || job.whole_fingerprint) {
    SW_ASSIGN(const std::uint64_t now, source.device->fingerprint(source.memory, job.seed, job.whole_fingerprint));
    unchanged = now == source.fingerprint;
  } else {
    SW_ASSIGN(unchanged, job.passages[source.passage].passage->unchanged(source.guard));
  }
  if (unchanged) return {};
  return fail(
      ErrorKind::kTorn,
      fmt::format("tensor '{}' was written to between save() and the fence; call fence() before changing it, or "
                  "have it captured at once inside save()",
                  job.names[tensor]),
      job.names[tensor]);
}

std::vector<std::string> changed_tensors(const StageJob& job, const std::string& first) {
  std::vector<std::string> names{first};
  for (std::uint32_t tensor = 0; tensor < job.sources.size(); ++tensor) {
    const Source& source = job.sources[tensor];
    if (!source.guarded || source.passage != kOnHost || job.names[tensor] == first) continue;
    const Status stood = check_stood_still(job, tensor);
    if (!stood && stood.error().kind == ErrorKind::kTorn) names.push_back(job.names[tensor]);
  }
  return names;
}

Result<CopiedWindow> WindowCopier::copy(const StageJob& job, std::uint32_t part, std::uint64_t index,
                                        std::span<std::byte> slab, CopiedBytes& copied) {
  const StreamLayout& layout = job.layout->parts[part];
  const std::uint64_t begin = index * slab.size();
  CopiedWindow window{.size_bytes = layout.window_bytes(index, slab.size()), .events = {}, .looks = {}};
  if (const std::string& header = layout.header(); begin < header.size()) {
    std::memcpy(slab.data(), header.data() + begin, std::min<std::uint64_t>(header.size() - begin, slab.size()));
  }
  pieces_.clear();
  layout.window_pieces(index, slab.size(), pieces_);
  SW_TRY(copy_pieces(job, slab));
  std::memset(slab.data() + window.size_bytes, 0, round_up(window.size_bytes, kTailMultiple) - window.size_bytes);
  SW_TRY(check_completed(job, copied, window.looks));
  SW_ASSIGN(window.events, mark_passages(job));
  return window;
}

Status WindowCopier::copy_pieces(const StageJob& job, std::span<std::byte> slab) {
  // Neighbours on the same device go to it in one call.
  const Source* where = nullptr;
  batch_.clear();
  const auto flush = [&]() -> Status {
    if (batch_.empty()) return {};
    Status status = where->passage == kOnHost ? where->device->copy_to_host(batch_)
                                              : job.passages[where->passage].passage->queue_copies(batch_);
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
    if (where == nullptr || source.device != where->device) {
      SW_TRY(flush());
      where = &source;
    }
    batch_.push_back({&source.memory, piece.tensor_begin, piece.size_bytes, to});
  }
  return flush();
}

Status WindowCopier::check_completed(const StageJob& job, CopiedBytes& copied,
                                     std::vector<std::uint32_t>& looks) const {
  for (const WindowPiece& piece : pieces_) {
    if (piece.tensor == kTreeSource || piece.size_bytes == 0) continue;
    const Source& source = job.sources[piece.tensor];
    if (!source.guarded) continue;
    const std::uint64_t tensor_bytes = source.memory.size_bytes();
    const std::uint64_t before = copied[piece.tensor].fetch_add(piece.size_bytes, std::memory_order_acq_rel);
    if (before + piece.size_bytes != tensor_bytes) continue;
    if (source.passage == kOnHost) {
      SW_TRY(check_stood_still(job, piece.tensor));
      continue;
    }
    if (!job.whole_fingerprint) SW_TRY(job.passages[source.passage].passage->queue_second_look(source.guard));
    looks.push_back(piece.tensor);
  }
  return {};
}

Result<std::vector<std::shared_ptr<Event>>> WindowCopier::mark_passages(const StageJob& job) const {
  std::vector<std::shared_ptr<Event>> events;
  if (job.passages.empty()) return events;
  std::vector<bool> used(job.passages.size());
  for (const WindowPiece& piece : pieces_) {
    if (piece.tensor == kTreeSource || piece.size_bytes == 0) continue;
    const std::uint32_t passage = job.sources[piece.tensor].passage;
    if (passage == kOnHost || used[passage]) continue;
    used[passage] = true;
    SW_ASSIGN(events.emplace_back(), job.passages[passage].passage->mark());
  }
  return events;
}

}  // namespace slackwater
