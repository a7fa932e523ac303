// Sizes and durations as people write and read them. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "slackwater/error.hpp"

namespace slackwater {

// "512MiB", "1.5 GiB", "64kB", "4096" -> bytes. kInvalidArgument quotes the text.
[[nodiscard]] Result<std::uint64_t> parse_bytes(std::string_view text);
// 1536 -> "1.5 KiB", 4096 -> "4 KiB".
[[nodiscard]] std::string format_bytes(std::uint64_t bytes);
[[nodiscard]] std::string format_seconds(double seconds);  // "1.3 ms", "2.04 s"

[[nodiscard]] constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}
[[nodiscard]] constexpr std::uint64_t round_down(std::uint64_t value, std::uint64_t multiple) {
  return value / multiple * multiple;
}

}  // namespace slackwater
