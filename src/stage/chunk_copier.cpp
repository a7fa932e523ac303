#include "stage/chunk_copier.hpp"

#include <algorithm>
#include <cstring>
#include <map>

#include <fmt/format.h>

#include "base/result.hpp"
#include "base/units.hpp"
#include "device/streaming_copy.hpp"

namespace slackwater {
namespace {

constexpr std::uint64_t kTailMultiple = 4096;  // direct writes are rounded up to this

Error torn(const StageJob& job, std::uint32_t tensor) {
  return {.kind = ErrorKind::kTorn,
          .message = fmt::format("tensor '{}' was written to between save() and the fence; call fence() before "
                                 "changing it, or have it captured at once inside save()",
                                 job.names[tensor]),
          .path = {},
          .tensor = job.names[tensor]};
}

}  // namespace

Status check_stood_still(const StageJob& job, std::uint32_t tensor) {
  const Source& source = job.sources[tensor];
  bool unchanged = false;
  if (source.device_index == kOnHost || job.whole_fingerprint) {
    SW_ASSIGN(const std::uint64_t now, source.device->fingerprint(source.memory, job.seed, job.whole_fingerprint));
    unchanged = now == source.fingerprint;
  } else {
    SW_ASSIGN(unchanged, job.device_copies[source.device_index].copies->unchanged(source.guard));
  }
  if (unchanged) return {};
  return fail(torn(job, tensor));
}

Status check_all_stood_still(const StageJob& job, std::span<const std::uint32_t> tensors) {
  if (!job.whole_fingerprint) {
    for (const std::uint32_t tensor : tensors) SW_TRY(check_stood_still(job, tensor));
    return {};
  }
  std::map<Device*, std::vector<std::uint32_t>> by_device;
  for (const std::uint32_t tensor : tensors) by_device[job.sources[tensor].device].push_back(tensor);
  for (const auto& [device, own] : by_device) {
    std::vector<const StridedMemory*> memories;
    for (const std::uint32_t tensor : own) memories.push_back(&job.sources[tensor].memory);
    SW_ASSIGN(const std::vector<std::uint64_t> now, device->whole_fingerprints(memories));
    for (std::size_t i = 0; i < own.size(); ++i) {
      if (now[i] != job.sources[own[i]].fingerprint) return fail(torn(job, own[i]));
    }
  }
  return {};
}

void copy_late(std::span<const CopyPiece> pieces) {
  for (const CopyPiece& piece : pieces) {
    streaming_copy(piece.host, piece.tensor->data + piece.begin, piece.size_bytes);
  }
}

std::vector<std::string> changed_tensors(const StageJob& job, const std::string& first) {
  std::vector<std::string> names{first};
  for (std::uint32_t tensor = 0; tensor < job.sources.size(); ++tensor) {
    const Source& source = job.sources[tensor];
    if (!source.guarded || source.device_index != kOnHost || job.names[tensor] == first) continue;
    const Status stood = check_stood_still(job, tensor);
    if (!stood && stood.error().kind == ErrorKind::kTorn) names.push_back(job.names[tensor]);
  }
  return names;
}

std::vector<CopyCost> ChunkCopier::costs(const StageJob& job, std::uint32_t part, std::uint64_t index,
                                         std::uint64_t slab_bytes) {
  struct Sum {
    std::uint64_t size_bytes = 0;
    std::uint64_t copies = 0;
    std::uint64_t samples = 0;
  };
  std::vector<Sum> sums(job.device_copies.size());
  pieces_.clear();
  job.layout->parts[part].chunk_pieces(index, slab_bytes, pieces_);
  for (const ChunkPiece& piece : pieces_) {
    if (piece.tensor == kTreeSource || piece.size_bytes == 0) continue;
    const Source& source = job.sources[piece.tensor];
    if (source.device_index == kOnHost) continue;
    Sum& sum = sums[source.device_index];
    sum.size_bytes += piece.size_bytes;
    ++sum.copies;
    // The second sample of a guarded tensor comes with one of its chunks, most often with this one.
    if (source.guarded && piece.tensor_begin + piece.size_bytes == source.memory.size_bytes()) ++sum.samples;
  }
  std::vector<CopyCost> costs;
  for (std::size_t i = 0; i < sums.size(); ++i) {
    if (sums[i].copies == 0) continue;
    const CopiesOfDevice& of = job.device_copies[i];
    const std::uint64_t operations = of.copies->operations(sums[i].copies, sums[i].size_bytes);
    costs.push_back({of.device, sums[i].size_bytes, operations + sums[i].samples});
  }
  return costs;
}

Result<CopiedChunk> ChunkCopier::copy(const StageJob& job, std::uint32_t part, std::uint64_t index,
                                      std::span<std::byte> slab, CopiedBytes& copied) {
  const FileLayout& layout = job.layout->parts[part];
  const std::uint64_t begin = index * slab.size();
  CopiedChunk chunk{.size_bytes = layout.chunk_bytes(index, slab.size()), .events = {}, .late = {}, .to_check = {}};

  // The header is text that the layout holds already. It fills the first chunk, or several if it is long.
  if (const std::string& header = layout.header(); begin < header.size()) {
    std::memcpy(slab.data(), header.data() + begin, std::min<std::uint64_t>(header.size() - begin, slab.size()));
  }
  pieces_.clear();
  layout.chunk_pieces(index, slab.size(), pieces_);
  SW_TRY(copy_pieces(job, slab, chunk.late));

  // A direct write rounds the last chunk up. Without the zeros it would write what an earlier snapshot left in the
  // slab, and a crash before the file is truncated would leave those bytes on disk.
  std::memset(slab.data() + chunk.size_bytes, 0, round_up(chunk.size_bytes, kTailMultiple) - chunk.size_bytes);

  // The guard comes after the copies, so that a write during the copy is noticed too. On a device its samples are
  // queued behind the copies, and the events behind the samples: once the events have happened, both are done.
  SW_TRY(check_completed(job, copied, chunk.to_check));
  SW_ASSIGN(chunk.events, record_events(job));
  return chunk;
}

Status ChunkCopier::copy_pieces(const StageJob& job, std::span<std::byte> slab, std::vector<CopyPiece>& late) {
  // Neighbouring pieces on the same device go to it in one call: a chunk of small tensors has thousands of them.
  const Source* where = nullptr;
  batch_.clear();
  const auto flush = [&]() -> Status {
    if (batch_.empty()) return {};
    Status status = where->device_index == kOnHost
                        ? where->device->copy_to_host(batch_)
                        : job.device_copies[where->device_index].copies->queue_copies(batch_);
    batch_.clear();
    return status;
  };
  for (const ChunkPiece& piece : pieces_) {
    std::byte* const to = slab.data() + piece.chunk_offset;
    if (piece.tensor == kTreeSource) {
      std::memcpy(to, job.tree.data() + piece.tensor_begin, piece.size_bytes);
      continue;
    }
    const Source& source = job.sources[piece.tensor];
    if (source.early_from != kOnHost) {
      if (piece.size_bytes > 0) late.push_back({&source.memory, piece.tensor_begin, piece.size_bytes, to});
      continue;
    }
    if (where == nullptr || source.device != where->device) {
      SW_TRY(flush());
      where = &source;
    }
    batch_.push_back({&source.memory, piece.tensor_begin, piece.size_bytes, to});
  }
  return flush();
}

Status ChunkCopier::check_completed(const StageJob& job, CopiedBytes& copied,
                                    std::vector<std::uint32_t>& to_check) const {
  for (const ChunkPiece& piece : pieces_) {
    if (piece.tensor == kTreeSource || piece.size_bytes == 0) continue;
    const Source& source = job.sources[piece.tensor];
    if (!source.guarded) continue;
    // A tensor may span many chunks, copied by several threads in any order. Only the last piece may trigger the
    // check: an earlier one would miss a write to the bytes not copied yet. acq_rel orders the other threads' copies
    // before the check.
    const std::uint64_t tensor_bytes = source.memory.size_bytes();
    const std::uint64_t before = copied[piece.tensor].fetch_add(piece.size_bytes, std::memory_order_acq_rel);
    if (before + piece.size_bytes != tensor_bytes) continue;
    if (source.device_index == kOnHost) {
      SW_TRY(check_stood_still(job, piece.tensor));
      continue;
    }
    // On a device the copies are only queued so far, so the second sample is queued behind them and compared later.
    // A paranoid job fingerprints the whole tensor instead, once the copies are done.
    if (!job.whole_fingerprint)
      SW_TRY(job.device_copies[source.device_index].copies->queue_second_sample(source.guard));
    to_check.push_back(piece.tensor);
  }
  return {};
}

Result<std::vector<std::shared_ptr<Event>>> ChunkCopier::record_events(const StageJob& job) const {
  // One event for each device that copies into this slab. Devices do not wait for each other, so the event of one says
  // nothing about the copies of another.
  std::vector<std::shared_ptr<Event>> events;
  if (job.device_copies.empty()) return events;
  std::vector<bool> used(job.device_copies.size());
  std::vector<bool> early_used(job.device_copies.size());
  for (const ChunkPiece& piece : pieces_) {
    if (piece.tensor == kTreeSource || piece.size_bytes == 0) continue;
    const Source& source = job.sources[piece.tensor];
    if (source.early_from != kOnHost && !early_used[source.early_from]) {
      early_used[source.early_from] = true;
      events.push_back(job.device_copies[source.early_from].early_filled);
    }
    const std::uint32_t device_index = source.device_index;
    if (device_index == kOnHost || used[device_index]) continue;
    used[device_index] = true;
    SW_ASSIGN(events.emplace_back(), job.device_copies[device_index].copies->record_event());
  }
  return events;
}

}  // namespace slackwater
