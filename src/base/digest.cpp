#include "base/digest.hpp"

#include <charconv>

#include <fmt/format.h>

#include "base/digest_kernels.hpp"

namespace slackwater {
namespace {

bool has_avx2() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx2") != 0;  // cheap: the processor was queried once, at program start
#else
  return false;
#endif
}

Digest128 to_digest(kernels::Wide wide) { return {wide.high, wide.low}; }

}  // namespace

std::uint64_t digest64(std::span<const std::byte> bytes) {
#if defined(__x86_64__)
  if (has_avx2()) return kernels::xxh3_64_avx2(bytes.data(), bytes.size());
#endif
  return kernels::xxh3_64_portable(bytes.data(), bytes.size());
}

Digest128 digest128(std::span<const std::byte> bytes) {
#if defined(__x86_64__)
  if (has_avx2()) return to_digest(kernels::xxh3_128_avx2(bytes.data(), bytes.size()));
#endif
  return to_digest(kernels::xxh3_128_portable(bytes.data(), bytes.size()));
}

Digest128 digest128(std::string_view text) { return digest128(std::as_bytes(std::span(text))); }

std::string to_hex(std::uint64_t digest) { return fmt::format("{:016x}", digest); }

std::string to_hex(const Digest128& digest) { return fmt::format("{:016x}{:016x}", digest.high, digest.low); }

// Each digest has exactly one spelling, so that equal digests are equal texts. Upper case, signs and prefixes are
// refused.
std::optional<std::uint64_t> digest64_from_hex(std::string_view hex) {
  if (hex.size() != 16 || hex.find_first_not_of("0123456789abcdef") != std::string_view::npos) return std::nullopt;
  std::uint64_t value = 0;
  std::from_chars(hex.data(), hex.data() + hex.size(), value, 16);
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
