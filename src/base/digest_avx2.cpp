// Compiled with -mavx2 (CMakeLists.txt), so it may run only after a check of the processor. There is no AVX-512
// version: AVX2 already hashes faster than memory delivers.
#if defined(__x86_64__)

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/digest_kernels.hpp"

namespace slackwater::kernels {

std::uint64_t xxh3_64_avx2(const void* bytes, std::size_t size) { return XXH3_64bits(bytes, size); }

Wide xxh3_128_avx2(const void* bytes, std::size_t size) {
  const XXH128_hash_t hash = XXH3_128bits(bytes, size);
  return {hash.high64, hash.low64};
}

}  // namespace slackwater::kernels

#endif
