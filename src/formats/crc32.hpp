// CRC-32 as zip files have it (IEEE 802.3, reflected). Pure functions; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace slackwater::formats {

// Continues from `crc`, which is 0 at the start.
[[nodiscard]] std::uint32_t crc32(std::span<const std::byte> bytes, std::uint32_t crc = 0);

}  // namespace slackwater::formats
