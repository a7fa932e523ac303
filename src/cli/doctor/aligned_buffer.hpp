// AlignedBuffer: page-aligned host memory of our own. fill_random: bytes that look like nothing else.
// Thread rule: none of its own. Move-only.
#pragma once

#include <sys/mman.h>

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
  // Huge pages, where the kernel grants them, make raw I/O as fast as the disk is. Tensors rarely have them.
  explicit AlignedBuffer(std::size_t size_bytes, bool huge_pages = false) : size_bytes_(size_bytes) {
    void* memory = nullptr;
    if (::posix_memalign(&memory, kHugePageBytes, size_bytes) != 0) throw std::bad_alloc();
    if (huge_pages) (void)::madvise(memory, size_bytes, MADV_HUGEPAGE);
    data_ = static_cast<std::byte*>(memory);
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
