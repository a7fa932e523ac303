// Dims: the shape or the strides of a tensor's memory. Up to four numbers lie in it and need no allocation, which is
// enough for nearly all tensors: save() makes two of these for each tensor of the state.
// A plain value.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace slackwater {

class Dims {
 public:
  using value_type = std::int64_t;
  using iterator = std::int64_t*;
  using const_iterator = const std::int64_t*;

  Dims() = default;
  Dims(std::initializer_list<std::int64_t> values) { copy({values.begin(), values.size()}); }
  Dims(const std::vector<std::int64_t>& values) { copy(values); }  // NOLINT(google-explicit-constructor)
  Dims(const Dims& other) { copy(other.values()); }
  Dims& operator=(const Dims& other) {
    if (this != &other) copy(other.values());
    return *this;
  }
  ~Dims() = default;

  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] bool empty() const { return size_ == 0; }
  [[nodiscard]] const std::int64_t* begin() const { return many_ == nullptr ? few_.data() : many_.get(); }
  [[nodiscard]] const std::int64_t* end() const { return begin() + size_; }
  [[nodiscard]] std::int64_t* begin() { return many_ == nullptr ? few_.data() : many_.get(); }
  [[nodiscard]] std::int64_t* end() { return begin() + size_; }
  [[nodiscard]] std::int64_t operator[](std::size_t i) const { return begin()[i]; }
  [[nodiscard]] std::int64_t& operator[](std::size_t i) { return begin()[i]; }
  [[nodiscard]] std::int64_t back() const { return begin()[size_ - 1]; }

  void assign(std::size_t count, std::int64_t value) {
    make_room(count);
    size_ = static_cast<std::uint32_t>(count);
    std::fill(begin(), end(), value);
  }
  void resize(std::size_t count) {  // new ones are 0
    make_room(count);
    if (count > size_) std::fill(begin() + size_, begin() + count, 0);
    size_ = static_cast<std::uint32_t>(count);
  }
  void push_back(std::int64_t value) {
    resize(size_ + 1);
    begin()[size_ - 1] = value;
  }
  void pop_back() { --size_; }
  void clear() { size_ = 0; }

  friend bool operator==(const Dims& a, const Dims& b) { return std::ranges::equal(a.values(), b.values()); }

 private:
  [[nodiscard]] std::span<const std::int64_t> values() const { return {begin(), size_}; }

  void copy(std::span<const std::int64_t> values) {
    size_ = 0;
    make_room(values.size());
    std::ranges::copy(values, begin());
    size_ = static_cast<std::uint32_t>(values.size());
  }

  // Keeps what is there.
  void make_room(std::size_t count) {
    if (count <= (many_ == nullptr ? few_.size() : capacity_)) return;
    const std::size_t room = 2 * count;
    auto larger = std::make_unique<std::int64_t[]>(room);
    std::copy(begin(), end(), larger.get());
    many_ = std::move(larger);
    capacity_ = static_cast<std::uint32_t>(room);
  }

  std::uint32_t size_ = 0;
  std::uint32_t capacity_ = 0;  // of many_
  std::array<std::int64_t, 4> few_{};
  std::unique_ptr<std::int64_t[]> many_;  // holds all of them, once there were more than few_ takes
};

}  // namespace slackwater
