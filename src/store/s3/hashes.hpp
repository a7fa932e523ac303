// The hashes that object stores ask for: SHA-256 and HMAC for signatures, CRC32C and MD5 for what is sent. Our own, so
// that the wheel links no OpenSSL. The format of checkpoints uses none of them (base/digest.hpp).
// Pure functions and small values; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace slackwater::s3 {

using Sha256 = std::array<std::byte, 32>;
using Md5 = std::array<std::byte, 16>;
using Pieces = std::span<const std::span<const std::byte>>;  // bytes that lie in several places

[[nodiscard]] Sha256 sha256(Pieces pieces);
[[nodiscard]] Sha256 sha256(std::string_view text);
[[nodiscard]] Sha256 hmac_sha256(std::span<const std::byte> key, std::string_view text);
[[nodiscard]] Md5 md5(Pieces pieces);
[[nodiscard]] std::uint32_t crc32c(Pieces pieces);

// One after the other: crc32c_next(crc32c_next(0, a), b) is that of a and b. The first uses the processor's instruction
// if there is one. The second never does; it is for other processors, and for tests.
[[nodiscard]] std::uint32_t crc32c_next(std::uint32_t crc, std::span<const std::byte> bytes);
[[nodiscard]] std::uint32_t crc32c_next_portable(std::uint32_t crc, std::span<const std::byte> bytes);

[[nodiscard]] std::string to_hex(std::span<const std::byte> bytes);  // lower case
[[nodiscard]] std::string to_base64(std::span<const std::byte> bytes);
[[nodiscard]] std::string crc_base64(std::uint32_t crc);  // as headers carry it: big-endian

}  // namespace slackwater::s3
