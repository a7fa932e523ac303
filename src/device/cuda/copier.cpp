#include "device/cuda/copier.hpp"

#include <limits>
#include <string_view>

#include "base/result.hpp"
#include "device/cuda/objects.hpp"

namespace slackwater::cuda {
namespace {

std::string_view run_symbol(CopyDirection direction) {
  switch (direction) {
    case CopyDirection::kToHost: return "cuMemcpyDtoHAsync_v2";
    case CopyDirection::kFromHost: return "cuMemcpyHtoDAsync_v2";
  }
  return "";
}

// The legacy default stream, which has two handles, takes no batches.
bool takes_batches(CUstream stream) { return reinterpret_cast<std::uintptr_t>(stream) > kStreamLegacy; }

bool refused(CUresult code) { return code == CUresult::kInvalidValue || code == CUresult::kNotSupported; }

}  // namespace

// Collects runs, so that they are queued together.
class Copier::Submission {
 public:
  Submission(Copier& copier, CopyDirection direction, CUstream stream)
      : copier_(copier), direction_(direction), stream_(stream) {}

  Status add(const Block& block) {
    if (block.rows > 1) return copier_.queue_block(block, direction_, stream_);
    runs_.push_back(block);
    return runs_.size() < kMaxBatch ? Status() : flush();
  }
  Status flush() {
    Status status = copier_.queue_runs(runs_, direction_, stream_);
    runs_.clear();
    return status;
  }

 private:
  Copier& copier_;
  const CopyDirection direction_;
  CUstream stream_;
  std::vector<Block> runs_;
};

Copier::Copier(const Context& context)
    : context_(context),
      max_pitch_(static_cast<std::uint64_t>(
          context.attribute(CUdevice_attribute::kMaxPitch).value_or(std::numeric_limits<std::int32_t>::max()))),
      batches_(context.driver().cuMemcpyBatchAsync_v2 != nullptr || context.driver().cuMemcpyBatchAsync != nullptr) {}

Status Copier::admit(CUstream stream) {
  for (SubmissionLimit& limit : limits_) {
    if (limit.stream() == stream) return limit.admit();
  }
  return {};  // a stream of the trainer, which must not wait here
}

Status Copier::queue(std::span<const CopyPiece> pieces, CopyDirection direction, CUstream stream) {
  Submission submission(*this, direction, stream);
  for (const CopyPiece& piece : pieces) {
    if (piece.tensor->contiguous()) {
      if (piece.size_bytes == 0) continue;
      SW_TRY(submission.add(
          {.strided = piece.tensor->data + piece.begin, .packed = piece.host, .width = piece.size_bytes}));
    } else if (direction == CopyDirection::kFromHost) {
      // Elements of a strided tensor may share memory. The last one must win, so they cannot go into an unordered
      // batch.
      SW_TRY(
          for_each_block(piece, max_pitch_, [&](const Block& block) { return queue_block(block, direction, stream); }));
    } else {
      SW_TRY(for_each_block(piece, max_pitch_, [&](const Block& block) { return submission.add(block); }));
    }
  }
  return submission.flush();
}

Status Copier::queue_blocks(std::span<const Block> blocks, CopyDirection direction, CUstream stream) {
  Submission submission(*this, direction, stream);
  for (const Block& block : blocks) SW_TRY(submission.add(block));
  return submission.flush();
}

Status Copier::queue_runs(std::span<const Block> runs, CopyDirection direction, CUstream stream) {
  if (runs.size() > 1 && takes_batches(stream) && batches_.load(std::memory_order_relaxed)) {
    SW_TRY(admit(stream));
    const CUresult code = copy_batch(runs, direction, stream);
    if (!refused(code)) return context_.check(code, "cuMemcpyBatchAsync");
    // The batch was refused, so queue the runs one by one. If the driver takes them, it is the batch call that it
    // refuses, and we never use it again. A refused batch may have started; copying the same bytes again does no harm.
    SW_TRY(queue_merged(runs, direction, stream));
    batches_.store(false, std::memory_order_relaxed);
    return {};
  }
  return queue_merged(runs, direction, stream);
}

Status Copier::queue_merged(std::span<const Block> runs, CopyDirection direction, CUstream stream) {
  for (std::size_t first = 0; first < runs.size();) {
    Block merged = runs[first];
    std::size_t next = first + 1;
    while (next < runs.size() && runs[next].strided == merged.strided + merged.width &&
           runs[next].packed == merged.packed + merged.width) {
      merged.width += runs[next++].width;
    }
    SW_TRY(admit(stream));
    CUresult code = copy_run(merged, direction, stream);
    if (next - first > 1 && code == CUresult::kInvalidValue) {
      // Two allocations or two registrations may be adjacent, but a copy must not span them.
      code = CUresult::kSuccess;
      for (std::size_t i = first; i < next && code == CUresult::kSuccess; ++i) {
        SW_TRY(admit(stream));
        code = copy_run(runs[i], direction, stream);
      }
    }
    SW_TRY(context_.check(code, run_symbol(direction)));
    first = next;
  }
  return {};
}

Status Copier::queue_block(const Block& block, CopyDirection direction, CUstream stream) {
  if (block.rows > 1 && block.pitch <= max_pitch_) {
    SW_TRY(admit(stream));
    const CUresult code = copy_rows(block, direction, stream);
    // Within a device, 2D copies may not accept every pitch. Then copy row by row.
    if (!refused(code)) return context_.check(code, "cuMemcpy2DAsync_v2");
  }
  for (std::uint64_t i = 0; i < block.rows; ++i) {
    SW_TRY(admit(stream));
    SW_TRY(context_.check(copy_run(row_of(block, i), direction, stream), run_symbol(direction)));
  }
  return {};
}

CUresult Copier::copy_run(const Block& run, CopyDirection direction, CUstream stream) const {
  const Driver& driver = context_.driver();
  switch (direction) {
    case CopyDirection::kToHost:
      return driver.cuMemcpyDtoHAsync_v2(run.packed, as_device(run.strided), run.width, stream);
    case CopyDirection::kFromHost:
      return driver.cuMemcpyHtoDAsync_v2(as_device(run.strided), run.packed, run.width, stream);
  }
  return CUresult::kInvalidValue;
}

CUresult Copier::copy_rows(const Block& block, CopyDirection direction, CUstream stream) const {
  const bool from_host = direction == CopyDirection::kFromHost;
  std::byte* const from = from_host ? block.packed : block.strided;
  std::byte* const to = from_host ? block.strided : block.packed;
  CUDA_MEMCPY2D_v2 copy{};
  copy.WidthInBytes = block.width;
  copy.Height = block.rows;
  // The memory type of each side tells the driver which of the two addresses to use.
  copy.srcMemoryType = from_host ? CUmemorytype::kHost : CUmemorytype::kDevice;
  copy.srcHost = from;
  copy.srcDevice = as_device(from);
  copy.srcPitch = from_host ? block.packed_pitch : block.pitch;
  copy.dstMemoryType = direction == CopyDirection::kToHost ? CUmemorytype::kHost : CUmemorytype::kDevice;
  copy.dstHost = to;
  copy.dstDevice = as_device(to);
  copy.dstPitch = from_host ? block.pitch : block.packed_pitch;
  return context_.driver().cuMemcpy2DAsync_v2(&copy, stream);
}

CUresult Copier::copy_batch(std::span<const Block> runs, CopyDirection direction, CUstream stream) const {
  std::vector<CUdeviceptr> strided;
  std::vector<CUdeviceptr> packed;
  std::vector<std::size_t> sizes;
  strided.reserve(runs.size());
  packed.reserve(runs.size());
  sizes.reserve(runs.size());
  for (const Block& run : runs) {
    strided.push_back(as_device(run.strided));
    packed.push_back(as_device(run.packed));
    sizes.push_back(run.width);
  }
  const bool from_host = direction == CopyDirection::kFromHost;
  CUdeviceptr* const to = from_host ? strided.data() : packed.data();
  CUdeviceptr* const from = from_host ? packed.data() : strided.data();
  CUmemcpyAttributes attributes{};
  attributes.srcAccessOrder = CUmemcpySrcAccessOrder::kStream;
  attributes.flags = kMemcpyFlagPreferOverlapWithCompute;
  std::size_t first_copy = 0;  // the attributes apply to all copies
  const Driver& driver = context_.driver();
  if (driver.cuMemcpyBatchAsync_v2 != nullptr) {
    return driver.cuMemcpyBatchAsync_v2(to, from, sizes.data(), sizes.size(), &attributes, &first_copy, 1, stream);
  }
  std::size_t failed_copy = 0;
  return driver.cuMemcpyBatchAsync(to, from, sizes.data(), sizes.size(), &attributes, &first_copy, 1, &failed_copy,
                                   stream);
}

}  // namespace slackwater::cuda
