// Uses what every machine of the target has: SSE2 on x86-64, NEON on aarch64, scalar code elsewhere.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/digest_kernels.hpp"

namespace slackwater::kernels {

std::uint64_t xxh3_64_portable(const void* bytes, std::size_t size) { return XXH3_64bits(bytes, size); }

Wide xxh3_128_portable(const void* bytes, std::size_t size) {
  const XXH128_hash_t hash = XXH3_128bits(bytes, size);
  return {hash.high64, hash.low64};
}

}  // namespace slackwater::kernels
