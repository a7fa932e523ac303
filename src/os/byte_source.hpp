// ByteSource: a known number of bytes that need not be in memory at once, such as one part of a large file.
// Thread rule: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "slackwater/error.hpp"

namespace slackwater {

class ByteSource {
 public:
  virtual ~ByteSource() = default;

  [[nodiscard]] virtual std::uint64_t size_bytes() const = 0;
  // Bytes from `offset` on: at least one, as many as are at hand. They stay valid until the next call. The same bytes
  // may be asked for again, because a transfer that fails starts over. `offset` is less than size_bytes().
  [[nodiscard]] virtual Result<std::span<const std::byte>> at(std::uint64_t offset) = 0;
};

// Bytes that are in memory, in several places. They outlive it, and so does the list of the places.
class MemorySource final : public ByteSource {
 public:
  explicit MemorySource(std::span<const std::span<const std::byte>> pieces) : pieces_(pieces) {
    for (const auto piece : pieces_) size_bytes_ += piece.size();
  }

  [[nodiscard]] std::uint64_t size_bytes() const override { return size_bytes_; }
  [[nodiscard]] Result<std::span<const std::byte>> at(std::uint64_t offset) override {
    for (const auto piece : pieces_) {
      if (offset < piece.size()) return piece.subspan(offset);
      offset -= piece.size();
    }
    return std::span<const std::byte>();
  }

 private:
  const std::span<const std::span<const std::byte>> pieces_;
  std::uint64_t size_bytes_ = 0;
};

}  // namespace slackwater
