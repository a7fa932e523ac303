#include "store/s3/hashes.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace slackwater::s3 {
namespace {

constexpr std::size_t kBlock = BlockBuffer::kBlock;

// Feeds whole blocks to `compress`. What is left over waits in the buffer.
template <class Compress>
void feed(BlockBuffer& buffer, std::span<const std::byte> bytes, const Compress& compress) {
  buffer.total_bytes += bytes.size();
  if (buffer.filled > 0) {
    const std::size_t taken = std::min(kBlock - buffer.filled, bytes.size());
    std::ranges::copy(bytes.first(taken), buffer.block.begin() + static_cast<std::ptrdiff_t>(buffer.filled));
    buffer.filled += taken;
    bytes = bytes.subspan(taken);
    if (buffer.filled < kBlock) return;
    compress(buffer.block.data());
    buffer.filled = 0;
  }
  for (; bytes.size() >= kBlock; bytes = bytes.subspan(kBlock)) compress(bytes.data());
  std::ranges::copy(bytes, buffer.block.begin());
  buffer.filled = bytes.size();
}

// The padding, which both hashes share but for the order of the length's bytes.
template <class Compress>
void pad(BlockBuffer& buffer, std::endian length_order, const Compress& compress) {
  auto& block = buffer.block;
  block[buffer.filled++] = std::byte{0x80};
  if (buffer.filled > kBlock - 8) {
    std::fill(block.begin() + static_cast<std::ptrdiff_t>(buffer.filled), block.end(), std::byte{0});
    compress(block.data());
    buffer.filled = 0;
  }
  std::fill(block.begin() + static_cast<std::ptrdiff_t>(buffer.filled), block.end(), std::byte{0});
  const std::uint64_t bits = buffer.total_bytes * 8;
  for (unsigned i = 0; i < 8; ++i) {
    const unsigned shift = length_order == std::endian::big ? 56 - 8 * i : 8 * i;
    block[kBlock - 8 + i] = static_cast<std::byte>(bits >> shift);
  }
  compress(block.data());
}

std::uint32_t load_big(const std::byte* at) {
  return std::to_integer<std::uint32_t>(at[0]) << 24 | std::to_integer<std::uint32_t>(at[1]) << 16 |
         std::to_integer<std::uint32_t>(at[2]) << 8 | std::to_integer<std::uint32_t>(at[3]);
}

std::uint32_t load_little(const std::byte* at) {
  std::uint32_t word = 0;
  std::memcpy(&word, at, sizeof(word));
  static_assert(std::endian::native == std::endian::little);
  return word;
}

// FIPS 180-4, section 4.2.2.
constexpr std::array<std::uint32_t, 64> kShaRound{
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

using ShaState = std::array<std::uint32_t, 8>;

void sha_compress(ShaState& state, const std::byte* block) {
  std::array<std::uint32_t, 64> w{};
  for (std::size_t i = 0; i < 16; ++i) w[i] = load_big(block + 4 * i);
  for (std::size_t i = 16; i < 64; ++i) {
    const std::uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
    const std::uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (std::size_t i = 0; i < 64; ++i) {
    const std::uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const std::uint32_t one = h + s1 + ((e & f) ^ (~e & g)) + kShaRound[i] + w[i];
    const std::uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const std::uint32_t two = s0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g;
    g = f;
    f = e;
    e = d + one;
    d = c;
    c = b;
    b = a;
    a = one + two;
  }
  const ShaState next{a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < state.size(); ++i) state[i] += next[i];
}

// RFC 1321: the table is the integer part of 2^32 times |sin(i + 1)|.
constexpr std::array<std::uint32_t, 64> kMd5Round{
    0xd76aa478, 0xe8c7b756, 0x242070db, 0xc1bdceee, 0xf57c0faf, 0x4787c62a, 0xa8304613, 0xfd469501,
    0x698098d8, 0x8b44f7af, 0xffff5bb1, 0x895cd7be, 0x6b901122, 0xfd987193, 0xa679438e, 0x49b40821,
    0xf61e2562, 0xc040b340, 0x265e5a51, 0xe9b6c7aa, 0xd62f105d, 0x02441453, 0xd8a1e681, 0xe7d3fbc8,
    0x21e1cde6, 0xc33707d6, 0xf4d50d87, 0x455a14ed, 0xa9e3e905, 0xfcefa3f8, 0x676f02d9, 0x8d2a4c8a,
    0xfffa3942, 0x8771f681, 0x6d9d6122, 0xfde5380c, 0xa4beea44, 0x4bdecfa9, 0xf6bb4b60, 0xbebfbc70,
    0x289b7ec6, 0xeaa127fa, 0xd4ef3085, 0x04881d05, 0xd9d4d039, 0xe6db99e5, 0x1fa27cf8, 0xc4ac5665,
    0xf4292244, 0x432aff97, 0xab9423a7, 0xfc93a039, 0x655b59c3, 0x8f0ccc92, 0xffeff47d, 0x85845dd1,
    0x6fa87e4f, 0xfe2ce6e0, 0xa3014314, 0x4e0811a1, 0xf7537e82, 0xbd3af235, 0x2ad7d2bb, 0xeb86d391};
constexpr std::array<std::array<int, 4>, 4> kMd5Shift{
    {{7, 12, 17, 22}, {5, 9, 14, 20}, {4, 11, 16, 23}, {6, 10, 15, 21}}};

using Md5State = std::array<std::uint32_t, 4>;

template <std::size_t kTurn, class Mix>
void md5_turn(Md5State& s, const std::array<std::uint32_t, 16>& words, std::size_t factor, std::size_t start, Mix mix) {
  auto [a, b, c, d] = s;
  for (std::size_t i = 0; i < 16; ++i) {
    const std::uint32_t sum = a + mix(b, c, d) + kMd5Round[16 * kTurn + i] + words[(factor * i + start) % 16];
    a = d;
    d = c;
    c = b;
    b += std::rotl(sum, kMd5Shift[kTurn][i % 4]);
  }
  s = {a, b, c, d};
}

void md5_compress(Md5State& state, const std::byte* block) {
  std::array<std::uint32_t, 16> words{};
  for (std::size_t i = 0; i < 16; ++i) words[i] = load_little(block + 4 * i);
  Md5State s = state;
  using Word = std::uint32_t;
  md5_turn<0>(s, words, 1, 0, [](Word b, Word c, Word d) { return d ^ (b & (c ^ d)); });
  md5_turn<1>(s, words, 5, 1, [](Word b, Word c, Word d) { return c ^ (d & (b ^ c)); });
  md5_turn<2>(s, words, 3, 5, [](Word b, Word c, Word d) { return b ^ c ^ d; });
  md5_turn<3>(s, words, 7, 0, [](Word b, Word c, Word d) { return c ^ (b | ~d); });
  for (std::size_t i = 0; i < state.size(); ++i) state[i] += s[i];
}

constexpr std::array<std::uint32_t, 256> make_crc_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82F63B78u : 0u);
    table[i] = crc;
  }
  return table;
}
constexpr auto kCrcTable = make_crc_table();

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) std::uint32_t crc32c_next_sse42(std::uint32_t crc, std::span<const std::byte> bytes) {
  std::uint64_t wide = ~crc;
  const std::byte* at = bytes.data();
  std::size_t left = bytes.size();
  for (; left >= 8; left -= 8, at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, at, sizeof(word));
    wide = _mm_crc32_u64(wide, word);
  }
  auto narrow = static_cast<std::uint32_t>(wide);
  for (; left > 0; --left, ++at) narrow = _mm_crc32_u8(narrow, std::to_integer<unsigned char>(*at));
  return ~narrow;
}
#endif

template <std::size_t kSize, class State>
std::array<std::byte, kSize> to_bytes(const State& state, std::endian order) {
  std::array<std::byte, kSize> result{};
  for (std::size_t i = 0; i < kSize; ++i) {
    const std::size_t shift = order == std::endian::big ? 24 - 8 * (i % 4) : 8 * (i % 4);
    result[i] = static_cast<std::byte>(state[i / 4] >> shift);
  }
  return result;
}

}  // namespace

void Sha256Stream::add(std::span<const std::byte> bytes) {
  feed(buffer_, bytes, [this](const std::byte* block) { sha_compress(state_, block); });
}

Sha256 Sha256Stream::finish() {
  pad(buffer_, std::endian::big, [this](const std::byte* block) { sha_compress(state_, block); });
  return to_bytes<32>(state_, std::endian::big);
}

void Md5Stream::add(std::span<const std::byte> bytes) {
  feed(buffer_, bytes, [this](const std::byte* block) { md5_compress(state_, block); });
}

Md5 Md5Stream::finish() {
  pad(buffer_, std::endian::little, [this](const std::byte* block) { md5_compress(state_, block); });
  return to_bytes<16>(state_, std::endian::little);
}

Sha256 sha256(Pieces pieces) {
  Sha256Stream stream;
  for (const auto piece : pieces) stream.add(piece);
  return stream.finish();
}

Sha256 sha256(std::string_view text) {
  const std::array pieces{std::as_bytes(std::span(text))};
  return sha256(pieces);
}

Sha256 hmac_sha256(std::span<const std::byte> key, std::string_view text) {
  std::array<std::byte, kBlock> inner{};
  if (key.size() > kBlock) {
    const std::array whole{key};
    std::ranges::copy(sha256(whole), inner.begin());
  } else {
    std::ranges::copy(key, inner.begin());
  }
  std::array<std::byte, kBlock> outer = inner;
  for (std::byte& byte : inner) byte ^= std::byte{0x36};
  for (std::byte& byte : outer) byte ^= std::byte{0x5c};
  const std::array<std::span<const std::byte>, 2> first{std::span<const std::byte>(inner),
                                                        std::as_bytes(std::span(text))};
  const Sha256 digest = sha256(first);
  const std::array<std::span<const std::byte>, 2> second{std::span<const std::byte>(outer),
                                                         std::span<const std::byte>(digest)};
  return sha256(second);
}

Md5 md5(Pieces pieces) {
  Md5Stream stream;
  for (const auto piece : pieces) stream.add(piece);
  return stream.finish();
}

std::uint32_t crc32c_next_portable(std::uint32_t crc, std::span<const std::byte> bytes) {
  crc = ~crc;
  for (const std::byte byte : bytes) crc = (crc >> 8) ^ kCrcTable[(crc ^ std::to_integer<std::uint32_t>(byte)) & 0xFF];
  return ~crc;
}

std::uint32_t crc32c_next(std::uint32_t crc, std::span<const std::byte> bytes) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2")) return crc32c_next_sse42(crc, bytes);
#endif
  return crc32c_next_portable(crc, bytes);
}

std::uint32_t crc32c(Pieces pieces) {
  std::uint32_t crc = 0;
  for (const auto piece : pieces) crc = crc32c_next(crc, piece);
  return crc;
}

std::string to_hex(std::span<const std::byte> bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  text.reserve(2 * bytes.size());
  for (const std::byte byte : bytes) {
    text += kDigits[std::to_integer<std::size_t>(byte >> 4)];
    text += kDigits[std::to_integer<std::size_t>(byte & std::byte{15})];
  }
  return text;
}

std::string to_base64(std::span<const std::byte> bytes) {
  constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const std::size_t count = std::min<std::size_t>(3, bytes.size() - i);
    std::uint32_t group = 0;
    for (std::size_t k = 0; k < 3; ++k)
      group = group << 8 | (k < count ? std::to_integer<std::uint32_t>(bytes[i + k]) : 0u);
    for (std::size_t k = 0; k < 4; ++k) text += k <= count ? kLetters[group >> (18 - 6 * k) & 63] : '=';
  }
  return text;
}

std::string crc_base64(std::uint32_t crc) {
  std::array<std::byte, 4> bytes{};
  for (std::size_t i = 0; i < 4; ++i) bytes[i] = static_cast<std::byte>(crc >> (24 - 8 * i));
  return to_base64(bytes);
}

}  // namespace slackwater::s3
