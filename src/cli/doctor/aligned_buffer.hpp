// AlignedBuffer: page-aligned host memory of our own. fill_random: bytes that look like nothing else.
// Thread rule: none of its own. Move-only.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <span>
#include <utility>

namespace slackwater::cli::doctor {

class AlignedBuffer {
 public:
  explicit AlignedBuffer(std::size_t size_bytes) : size_bytes_(size_bytes) {
    void* memory = nullptr;
    if (::posix_memalign(&memory, kHugePageBytes, size_bytes) != 0) throw std::bad_alloc();
    data_ = static_cast<std::byte*>(memory);
  }
  // With huge pages for so much of it, as far as the kernel grants them, and plain ones for the rest.
  AlignedBuffer(std::size_t size_bytes, std::size_t huge_bytes) : AlignedBuffer(size_bytes) {
    huge_bytes = std::min(huge_bytes / kHugePageBytes * kHugePageBytes, size_bytes);
    if (huge_bytes > 0) (void)::madvise(data_, huge_bytes, MADV_HUGEPAGE);
    if (huge_bytes < size_bytes) (void)::madvise(data_ + huge_bytes, size_bytes - huge_bytes, MADV_NOHUGEPAGE);
  }
  AlignedBuffer(AlignedBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_bytes_(other.size_bytes_) {}
  AlignedBuffer& operator=(AlignedBuffer&&) = delete;
  ~AlignedBuffer() { std::free(data_); }

  [[nodiscard]] std::span<std::byte> bytes() const { return {data_, size_bytes_}; }

 private:
  static constexpr std::size_t kHugePageBytes = 2u << 20;
  std::byte* data_ = nullptr;
  std::size_t size_bytes_;
};

// splitmix64. The size is a multiple of 8.
inline void fill_random(std::span<std::byte> bytes, std::uint64_t seed) {
  std::uint64_t state = seed * 0xD1B54A32D192ED03u;
  for (std::size_t at = 0; at + 8 <= bytes.size(); at += 8) {
    std::uint64_t word = (state += 0x9E3779B97F4A7C15u);
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9u;
    word = (word ^ word >> 27) * 0x94D049BB133111EBu;
    word ^= word >> 31;
    std::memcpy(bytes.data() + at, &word, 8);
  }
}

}  // namespace slackwater::cli::doctor
