// Fills and compares the bytes of test tensors in one piece. Byte by byte, in the hardly optimised sanitizer builds,
// this took longer than everything that the tests are about.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

namespace slackwater::test {

[[nodiscard]] inline bool same_bytes(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

// A vector whose == is one memcmp: the standard library compares std::byte one at a time.
struct Bytes : std::vector<std::byte> {
  using vector::vector;
  Bytes(std::vector<std::byte> bytes) : vector(std::move(bytes)) {}
  friend bool operator==(const Bytes& a, const Bytes& b) { return same_bytes(a, b); }
};

// Every word is a function of `key` and its place, so that misplaced bytes show, and those of another key.
inline void fill_pattern(std::span<std::byte> bytes, std::uint64_t key) {
  std::byte* const to = bytes.data();
  const std::size_t size = bytes.size(), whole_words = size / 8 * 8;
  const std::uint64_t first = key * 0x9e3779b97f4a7c15;
  for (std::size_t at = 0; at < size; at += 8) {
    std::uint64_t word = first + at;
    word = (word ^ (word >> 29)) * 0xbf58476d1ce4e5b9;
    word ^= word >> 32;
    if (at < whole_words)
      std::memcpy(to + at, &word, 8);
    else
      std::memcpy(to + at, &word, size - at);
  }
}

}  // namespace slackwater::test
