// Memory and states to measure with: page aligned, filled with bytes that do not compress, touched before anything is
// timed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "slackwater/error.hpp"
#include "slackwater/tensor.hpp"

namespace slackwater::bench {

enum class Pages : std::uint8_t {
  kDefault,  // what a trainer's allocator gives
  kHuge,     // asked for, as the engine's pool does
};

// An anonymous mapping, move-only.
class HostMemory {
 public:
  [[nodiscard]] static Result<HostMemory> create(std::uint64_t size_bytes, Pages pages);
  HostMemory(HostMemory&& other) noexcept;
  HostMemory& operator=(HostMemory&& other) noexcept;
  ~HostMemory();

  [[nodiscard]] std::span<std::byte> bytes() const { return {data_, size_}; }
  void fill_random(std::uint64_t seed) const;  // touches every page
  void fill_zero() const;                      // this too

 private:
  HostMemory(std::byte* data, std::uint64_t size) : data_(data), size_(size) {}
  std::byte* data_ = nullptr;
  std::uint64_t size_ = 0;
};

// `count` equal float32 tensors that together have `size_bytes` (rounded down to whole elements each).
class HostState {
 public:
  [[nodiscard]] static Result<HostState> create(std::uint64_t size_bytes, std::uint32_t count);

  [[nodiscard]] State state() const;  // for Engine::save
  [[nodiscard]] std::vector<Target> targets(
      const HostMemory& memory) const;  // the same tensors at the same places of `memory`
  [[nodiscard]] const HostMemory& memory() const { return memory_; }
  [[nodiscard]] std::uint64_t size_bytes() const { return tensor_bytes_ * count_; }
  [[nodiscard]] std::uint32_t count() const { return count_; }

 private:
  HostState(HostMemory memory, std::uint64_t tensor_bytes, std::uint32_t count)
      : memory_(std::move(memory)), tensor_bytes_(tensor_bytes), count_(count) {}
  [[nodiscard]] std::string name(std::uint32_t index) const;

  HostMemory memory_;
  std::uint64_t tensor_bytes_;
  std::uint32_t count_;
};

}  // namespace slackwater::bench
