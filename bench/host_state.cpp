#include "host_state.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "base/error.hpp"
#include "base/result.hpp"

namespace slackwater::bench {

Result<HostMemory> HostMemory::create(std::uint64_t size_bytes, Pages pages) {
  void* data = ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED)
    return fail(error_from_errno(errno, fmt::format("cannot map {} bytes of memory", size_bytes)));
  // Advice only: without huge pages the figures are a little lower on both sides alike.
  if (pages == Pages::kHuge) ::madvise(data, size_bytes, MADV_HUGEPAGE);
  return HostMemory(static_cast<std::byte*>(data), size_bytes);
}

HostMemory::HostMemory(HostMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

HostMemory& HostMemory::operator=(HostMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

HostMemory::~HostMemory() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

void HostMemory::fill_random(std::uint64_t seed) const {
  std::uint64_t word = seed * 0x9e3779b97f4a7c15u + 1;
  for (std::uint64_t at = 0; at < size_; at += sizeof word) {
    word ^= word << 13;
    word ^= word >> 7;
    word ^= word << 17;
    std::memcpy(data_ + at, &word, std::min<std::uint64_t>(sizeof word, size_ - at));
  }
}

void HostMemory::fill_zero() const { std::memset(data_, 0, size_); }

Result<HostState> HostState::create(std::uint64_t size_bytes, std::uint32_t count) {
  const std::uint64_t tensor_bytes = size_bytes / count / sizeof(float) * sizeof(float);
  SW_ASSIGN(HostMemory memory, HostMemory::create(tensor_bytes * count, Pages::kDefault));
  memory.fill_random(count);
  return HostState(std::move(memory), tensor_bytes, count);
}

std::string HostState::name(std::uint32_t index) const { return fmt::format("model.layers.{}.weight", index); }

State HostState::state() const {
  State state;
  state.tensors.reserve(count_);
  for (std::uint32_t i = 0; i < count_; ++i) {
    state.tensors.push_back({.name = name(i),
                             .dtype = DType::kF32,
                             .shape = {static_cast<std::int64_t>(tensor_bytes_ / sizeof(float))},
                             .strides = {},
                             .data = memory_.bytes().data() + i * tensor_bytes_});
  }
  state.tree = "{}";
  return state;
}

std::vector<Target> HostState::targets(const HostMemory& memory) const {
  std::vector<Target> targets;
  targets.reserve(count_);
  for (std::uint32_t i = 0; i < count_; ++i) {
    targets.push_back({.name = name(i),
                       .dtype = DType::kF32,
                       .shape = {static_cast<std::int64_t>(tensor_bytes_ / sizeof(float))},
                       .strides = {},
                       .data = memory.bytes().data() + i * tensor_bytes_});
  }
  return targets;
}

}  // namespace slackwater::bench
