#include "base/digest.hpp"

#include <fmt/format.h>

#include "base/digest_kernels.hpp"

namespace slackwater {
namespace {

bool has_avx2() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx2") != 0;  // a load and a test: the processor was asked once, at start
#else
  return false;
#endif
}

kernels::Wide wide_digest(const void* bytes, std::size_t size) {
#if defined(__x86_64__)
  if (has_avx2()) return kernels::xxh3_128_avx2(bytes, size);
#endif
  return kernels::xxh3_128_portable(bytes, size);
}

}  // namespace

std::uint64_t digest64(std::span<const std::byte> bytes) {
#if defined(__x86_64__)
  if (has_avx2()) return kernels::xxh3_64_avx2(bytes.data(), bytes.size());
#endif
  return kernels::xxh3_64_portable(bytes.data(), bytes.size());
}

Digest128 digest128(std::span<const std::byte> bytes) {
  const kernels::Wide wide = wide_digest(bytes.data(), bytes.size());
  return {wide.high, wide.low};
}

Digest128 digest128(std::string_view text) { return digest128(std::as_bytes(std::span(text))); }

std::string to_hex(std::uint64_t digest) { return fmt::format("{:016x}", digest); }

std::string to_hex(const Digest128& digest) { return fmt::format("{:016x}{:016x}", digest.high, digest.low); }

// One spelling a digest: upper case, signs and prefixes are refused, so that equal digests are equal texts.
std::optional<std::uint64_t> digest64_from_hex(std::string_view hex) {
  if (hex.size() != 16) return std::nullopt;
  std::uint64_t value = 0;
  for (const char digit : hex) {
    if (digit >= '0' && digit <= '9') {
      value = value << 4 | static_cast<std::uint64_t>(digit - '0');
    } else if (digit >= 'a' && digit <= 'f') {
      value = value << 4 | static_cast<std::uint64_t>(digit - 'a' + 10);
    } else {
      return std::nullopt;
    }
  }
  return value;
}

std::optional<Digest128> digest128_from_hex(std::string_view hex) {
  if (hex.size() != 32) return std::nullopt;
  const auto high = digest64_from_hex(hex.substr(0, 16));
  const auto low = digest64_from_hex(hex.substr(16));
  if (!high || !low) return std::nullopt;
  return Digest128{*high, *low};
}

}  // namespace slackwater
