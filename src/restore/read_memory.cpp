#include "restore/read_memory.hpp"

#include <algorithm>
#include <cstdint>

namespace slackwater {
namespace {

constexpr std::uint64_t kReadSlabBytes = 4u << 20;
constexpr std::uint64_t kMaxReadSlabs = 1024;

}  // namespace

Result<std::unique_ptr<Pool>> make_read_pool(const ReadOptions& options, std::uint64_t size_bytes) {
  const std::uint64_t useful = size_bytes / kReadSlabBytes + 1;
  const std::uint64_t slabs =
      std::clamp<std::uint64_t>(std::min(options.buffer_bytes / kReadSlabBytes, useful), 2, kMaxReadSlabs);
  return Pool::create(kReadSlabBytes, static_cast<std::uint32_t>(slabs));
}

BlockReader::Options block_reader_options(const ReadOptions& options) {
  return {.buffer_bytes = options.buffer_bytes,
          .force_threads = options.io_backend == IoBackend::kThreads,
          .direct = options.direct_io};
}

}  // namespace slackwater
