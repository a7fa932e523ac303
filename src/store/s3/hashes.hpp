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

// Bytes that arrive in any portions, as the whole blocks that SHA-256 and MD5 take.
struct BlockBuffer {
  static constexpr std::size_t kBlock = 64;
  std::array<std::byte, kBlock> block = {};
  std::size_t filled = 0;
  std::uint64_t total_bytes = 0;
};

class Sha256Stream {
 public:
  void add(std::span<const std::byte> bytes);
  [[nodiscard]] Sha256 finish();  // once

 private:
  std::array<std::uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  BlockBuffer buffer_;
};

class Md5Stream {
 public:
  void add(std::span<const std::byte> bytes);
  [[nodiscard]] Md5 finish();  // once

 private:
  std::array<std::uint32_t, 4> state_{0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476};
  BlockBuffer buffer_;
};

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
