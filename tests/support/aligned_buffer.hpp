// AlignedBuffer: memory that O_DIRECT takes, on pages of its own.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <span>

namespace slackwater::test {

class AlignedBuffer {
 public:
  explicit AlignedBuffer(std::size_t size) : size_(size) {
    data_ = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data_ == MAP_FAILED) throw std::bad_alloc();
  }
  ~AlignedBuffer() { ::munmap(data_, size_); }
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;

  [[nodiscard]] std::byte* data() { return static_cast<std::byte*>(data_); }
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] std::span<std::byte> bytes() { return {data(), size_}; }

  // A pattern that differs at every offset and for every seed.
  void fill(std::uint64_t seed) {
    std::uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
    for (std::size_t at = 0; at < size_; at += sizeof state) {  // by words: sanitizers make each access dear
      state = state * 6364136223846793005u + 1442695040888963407u;
      std::memcpy(data() + at, &state, std::min(sizeof state, size_ - at));
    }
  }

 private:
  void* data_;
  std::size_t size_;
};

}  // namespace slackwater::test
