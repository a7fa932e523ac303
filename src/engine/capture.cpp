#include "engine/capture.hpp"

#include <fmt/format.h>

#include "base/result.hpp"
#include "base/units.hpp"

namespace slackwater {
namespace {

constexpr std::uint64_t kEarlyCopyAlignment = 64;

StridedMemory memory_of(const Tensor& tensor) {
  return simplify(StridedMemory{.data = static_cast<std::byte*>(const_cast<void*>(tensor.data)),
                                .item_bytes = item_bytes(tensor.dtype),
                                .shape = tensor.shape,
                                .strides = tensor.strides});
}

}  // namespace

Result<Capture> capture(const State& state, Device& host, const std::set<std::string, std::less<>>& known_torn,
                        const CaptureOptions& options) {
  Capture result;
  result.seed = options.seed;
  result.whole_fingerprint = options.whole_fingerprint;
  result.sources.reserve(state.tensors.size());

  std::vector<std::uint32_t> early;
  std::uint64_t early_bytes = 0;
  for (std::uint32_t i = 0; i < state.tensors.size(); ++i) {
    const Tensor& tensor = state.tensors[i];
    if (tensor.device != kHostDevice) {
      return fail(
          ErrorKind::kUnsupported,
          fmt::format("tensor '{}' is on device {}: this version captures host memory only; move it with .cpu()",
                      tensor.name, tensor.device));
    }
    Source source{.memory = memory_of(tensor), .device = &host};
    const bool torn_before = !known_torn.empty() && known_torn.contains(tensor.name);
    const std::uint64_t bytes = source.memory.size_bytes();
    if ((tensor.at_once || torn_before) && bytes > 0) {
      if (early_bytes + bytes <= kMaxAtOnceBytes) {
        early_bytes += round_up(bytes, kEarlyCopyAlignment);
        early.push_back(i);
      } else {
        result.needs_fence = true;
      }
    }
    result.sources.push_back(std::move(source));
  }

  result.at_once_bytes = std::make_unique_for_overwrite<std::byte[]>(early_bytes);
  std::vector<bool> is_early(state.tensors.size());
  std::byte* to = result.at_once_bytes.get();
  for (const std::uint32_t i : early) {
    Source& source = result.sources[i];
    const std::uint64_t bytes = source.memory.size_bytes();
    const CopyPiece piece{.tensor = &source.memory, .begin = 0, .size_bytes = bytes, .host = to};
    SW_TRY(host.copy_to_host({&piece, 1}));
    source.memory =
        StridedMemory{.data = to, .item_bytes = 1, .shape = {static_cast<std::int64_t>(bytes)}, .strides = {}};
    is_early[i] = true;
    result.at_once_size_bytes += bytes;
    to += round_up(bytes, kEarlyCopyAlignment);
  }

  for (std::uint32_t i = 0; i < result.sources.size(); ++i) {
    Source& source = result.sources[i];
    if (is_early[i] || source.memory.size_bytes() == 0) continue;
    source.guarded = true;
    SW_ASSIGN(source.fingerprint, host.fingerprint(source.memory, options.seed, options.whole_fingerprint));
  }
  return result;
}

}  // namespace slackwater
