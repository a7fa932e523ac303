#include "device/cuda_copier.hpp"

#include <limits>
#include <string_view>

#include "base/result.hpp"
#include "device/cuda_objects.hpp"

namespace slackwater::cuda {
namespace {

// The driver names no limit; this bounds our own memory, and how long one call holds the driver's lock.
constexpr std::size_t kMaxBatch = 1024;

std::string_view run_symbol(CopyDirection direction) {
  switch (direction) {
    case CopyDirection::kToHost: return "cuMemcpyDtoHAsync_v2";
    case CopyDirection::kFromHost: return "cuMemcpyHtoDAsync_v2";
    case CopyDirection::kWithin: return "cuMemcpyDtoDAsync_v2";
  }
  return "";
}

// Batches are not for the legacy default stream, which has two handles.
bool takes_batches(CUstream stream) { return reinterpret_cast<std::uintptr_t>(stream) > kStreamLegacy; }

bool refused(CUresult code) { return code == CUresult::kInvalidValue || code == CUresult::kNotSupported; }

}  // namespace

// Collects runs, so that they leave together.
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

Status Copier::queue(std::span<const CopyPiece> pieces, CopyDirection direction, CUstream stream) {
  Submission submission(*this, direction, stream);
  for (const CopyPiece& piece : pieces) {
    if (piece.tensor->contiguous()) {
      if (piece.size_bytes == 0) continue;
      SW_TRY(submission.add(
          {.strided = piece.tensor->data + piece.begin, .packed = piece.host, .width = piece.size_bytes}));
    } else if (direction == CopyDirection::kFromHost) {
      // Elements of a strided tensor may share memory; which of them stays must not be left to a batch.
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
    const CUresult code = copy_batch(runs, direction, stream);
    if (!refused(code)) return context_.check(code, "cuMemcpyBatchAsync");
    // Refused: one by one then. If the driver takes them so, it was the batch it did not like: never again. Copying what a
    // refused batch may have begun once more does no harm.
    SW_TRY(queue_merged(runs, direction, stream));
    batches_.store(false, std::memory_order_relaxed);
    return {};
  }
  return queue_merged(runs, direction, stream);
}

Status Copier::queue_merged(std::span<const Block> runs, CopyDirection direction, CUstream stream) const {
  for (std::size_t first = 0; first < runs.size();) {
    Block merged = runs[first];
    std::size_t next = first + 1;
    while (next < runs.size() && runs[next].strided == merged.strided + merged.width &&
           runs[next].packed == merged.packed + merged.width) {
      merged.width += runs[next++].width;
    }
    CUresult code = copy_run(merged, direction, stream);
    if (next - first > 1 && code == CUresult::kInvalidValue) {
      // Two allocations, or two registrations of host memory, may touch each other; a copy must not span them.
      code = CUresult::kSuccess;
      for (std::size_t i = first; i < next && code == CUresult::kSuccess; ++i) {
        code = copy_run(runs[i], direction, stream);
      }
    }
    SW_TRY(context_.check(code, run_symbol(direction)));
    first = next;
  }
  return {};
}

Status Copier::queue_block(const Block& block, CopyDirection direction, CUstream stream) const {
  if (block.rows > 1 && block.pitch <= max_pitch_) {
    const CUresult code = copy_rows(block, direction, stream);
    // Within a device, 2D copies need not accept every pitch.
    if (!refused(code)) return context_.check(code, "cuMemcpy2DAsync_v2");
  }
  for (std::uint64_t i = 0; i < block.rows; ++i) {
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
    case CopyDirection::kWithin:
      return driver.cuMemcpyDtoDAsync_v2(as_device(run.packed), as_device(run.strided), run.width, stream);
  }
  return CUresult::kInvalidValue;
}

CUresult Copier::copy_rows(const Block& block, CopyDirection direction, CUstream stream) const {
  CUDA_MEMCPY2D_v2 copy{};
  copy.WidthInBytes = block.width;
  copy.Height = block.rows;
  switch (direction) {
    case CopyDirection::kToHost:
    case CopyDirection::kWithin:
      copy.srcMemoryType = CUmemorytype::kDevice;
      copy.srcDevice = as_device(block.strided);
      copy.srcPitch = block.pitch;
      copy.dstPitch = block.packed_pitch;
      if (direction == CopyDirection::kToHost) {
        copy.dstMemoryType = CUmemorytype::kHost;
        copy.dstHost = block.packed;
      } else {
        copy.dstMemoryType = CUmemorytype::kDevice;
        copy.dstDevice = as_device(block.packed);
      }
      break;
    case CopyDirection::kFromHost:
      copy.srcMemoryType = CUmemorytype::kHost;
      copy.srcHost = block.packed;
      copy.srcPitch = block.packed_pitch;
      copy.dstMemoryType = CUmemorytype::kDevice;
      copy.dstDevice = as_device(block.strided);
      copy.dstPitch = block.pitch;
      break;
  }
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
  std::size_t first_copy = 0;  // the attributes are for all of them
  const Driver& driver = context_.driver();
  if (driver.cuMemcpyBatchAsync_v2 != nullptr) {
    return driver.cuMemcpyBatchAsync_v2(to, from, sizes.data(), sizes.size(), &attributes, &first_copy, 1, stream);
  }
  std::size_t failed_copy = 0;
  return driver.cuMemcpyBatchAsync(to, from, sizes.data(), sizes.size(), &attributes, &first_copy, 1, &failed_copy,
                                   stream);
}

}  // namespace slackwater::cuda
