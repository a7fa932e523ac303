// XXH3 digests, the only checksums in the project. Pure functions; call them from any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace slackwater {

inline constexpr std::uint64_t kBlockBytes = 1u << 20;  // file bytes per checksum, whatever the slab size

struct Digest128 {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  friend bool operator==(const Digest128&, const Digest128&) = default;
};

[[nodiscard]] std::uint64_t digest64(std::span<const std::byte> bytes);
[[nodiscard]] Digest128 digest128(std::span<const std::byte> bytes);
[[nodiscard]] Digest128 digest128(std::string_view text);

// Lower-case hex, most significant digit first: 16 and 32 characters.
[[nodiscard]] std::string to_hex(std::uint64_t digest);
[[nodiscard]] std::string to_hex(const Digest128& digest);
[[nodiscard]] std::optional<std::uint64_t> digest64_from_hex(std::string_view hex);
[[nodiscard]] std::optional<Digest128> digest128_from_hex(std::string_view hex);

}  // namespace slackwater
