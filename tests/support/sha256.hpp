// sha256: the digest that the fixtures' expectations use, in hexadecimal. For small inputs; not fast. The engine has no
// part in it, so that a mistake in the engine's own digests cannot hide one in what it reads.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace slackwater::test {

// The constants of SHA-256: the first 32 bits behind the point of a root of the first primes.
template <std::size_t kCount, class Root>
std::array<std::uint32_t, kCount> fractions_of_primes(Root root) {
  std::array<std::uint32_t, kCount> words{};
  std::uint32_t candidate = 1;
  for (std::uint32_t& word : words) {
    bool prime = false;
    while (!prime) {
      prime = ++candidate > 1;
      for (std::uint32_t divisor = 2; divisor * divisor <= candidate; ++divisor) prime &= candidate % divisor != 0;
    }
    const long double value = root(static_cast<long double>(candidate));
    word = static_cast<std::uint32_t>((value - std::floor(value)) * 4294967296.0L);
  }
  return words;
}

inline std::array<std::byte, 32> sha256(std::span<const std::byte> data) {
  static const auto kRound = fractions_of_primes<64>([](long double prime) { return std::cbrt(prime); });
  auto state = fractions_of_primes<8>([](long double prime) { return std::sqrt(prime); });

  std::vector<std::byte> padded(data.begin(), data.end());
  padded.push_back(std::byte{0x80});
  while (padded.size() % 64 != 56) padded.push_back(std::byte{0});
  const std::uint64_t size_bits = data.size() * 8;
  for (int shift = 56; shift >= 0; shift -= 8) padded.push_back(static_cast<std::byte>(size_bits >> shift));

  for (std::size_t block = 0; block < padded.size(); block += 64) {
    std::array<std::uint32_t, 64> words{};
    for (std::size_t i = 0; i < 64; ++i)
      words[i / 4] = words[i / 4] << 8 | std::to_integer<std::uint32_t>(padded[block + i]);
    for (std::size_t i = 16; i < 64; ++i) {
      const std::uint32_t a = words[i - 15], b = words[i - 2];
      words[i] = words[i - 16] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ (a >> 3)) + words[i - 7] +
                 (std::rotr(b, 17) ^ std::rotr(b, 19) ^ (b >> 10));
    }
    auto s = state;
    for (std::size_t i = 0; i < 64; ++i) {
      const std::uint32_t mix = std::rotr(s[4], 6) ^ std::rotr(s[4], 11) ^ std::rotr(s[4], 25);
      const std::uint32_t first = s[7] + mix + ((s[4] & s[5]) ^ (~s[4] & s[6])) + kRound[i] + words[i];
      const std::uint32_t other = std::rotr(s[0], 2) ^ std::rotr(s[0], 13) ^ std::rotr(s[0], 22);
      const std::uint32_t second = other + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
      s = {first + second, s[0], s[1], s[2], s[3] + first, s[4], s[5], s[6]};
    }
    for (std::size_t i = 0; i < 8; ++i) state[i] += s[i];
  }
  std::array<std::byte, 32> digest{};
  for (std::size_t i = 0; i < 32; ++i) digest[i] = static_cast<std::byte>(state[i / 4] >> (24 - 8 * (i % 4)));
  return digest;
}

inline std::string sha256_hex(std::span<const std::byte> data) {
  std::string text;
  for (const std::byte byte : sha256(data)) text += fmt::format("{:02x}", std::to_integer<unsigned>(byte));
  return text;
}

}  // namespace slackwater::test
