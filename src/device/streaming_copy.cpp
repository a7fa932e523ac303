#include "device/streaming_copy.hpp"

#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace slackwater {

#if defined(__SSE2__)

namespace {

constexpr std::size_t kLineBytes = 64;
constexpr std::size_t kStreamFromBytes = 4096;  // below this, the fence costs more than it saves

}  // namespace

void streaming_copy(std::byte* to, const std::byte* from, std::size_t size_bytes) {
  if (size_bytes < kStreamFromBytes) {
    std::memcpy(to, from, size_bytes);
    return;
  }
  const std::size_t head = -reinterpret_cast<std::uintptr_t>(to) % kLineBytes;
  std::memcpy(to, from, head);
  to += head;
  from += head;
  size_bytes -= head;
  for (; size_bytes >= kLineBytes; size_bytes -= kLineBytes, to += kLineBytes, from += kLineBytes) {
    const auto* const line = reinterpret_cast<const __m128i*>(from);
    auto* const target = reinterpret_cast<__m128i*>(to);
    const __m128i a = _mm_loadu_si128(line);
    const __m128i b = _mm_loadu_si128(line + 1);
    const __m128i c = _mm_loadu_si128(line + 2);
    const __m128i d = _mm_loadu_si128(line + 3);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
  }
  _mm_sfence();  // a mutex alone does not order non-temporal stores
  std::memcpy(to, from, size_bytes);
}

#else

void streaming_copy(std::byte* to, const std::byte* from, std::size_t size_bytes) { std::memcpy(to, from, size_bytes); }

#endif

}  // namespace slackwater
