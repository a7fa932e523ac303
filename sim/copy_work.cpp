#include "sim/copy_work.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace slackwater::sim {
namespace {

constexpr std::size_t kTinyBytes = 256;        // moved at once, at the end
constexpr std::size_t kPieceBytes = 1u << 20;  // moved under the locks at a time, so that kernels get in between

class LockAll {
 public:
  explicit LockAll(const std::vector<std::mutex*>& locks) : locks_(locks) {
    for (std::mutex* lock : locks_) lock->lock();
  }
  ~LockAll() {
    for (std::mutex* lock : locks_) lock->unlock();
  }
  LockAll(const LockAll&) = delete;
  LockAll& operator=(const LockAll&) = delete;

 private:
  const std::vector<std::mutex*>& locks_;
};

}  // namespace

CopyWork::CopyWork(std::vector<CopyPart> parts, std::vector<std::mutex*> locks,
                   std::vector<std::shared_ptr<const void>> held, bool wrong)
    : parts_(std::move(parts)), locks_(std::move(locks)), held_(std::move(held)), wrong_(wrong) {}

void CopyWork::begin() {
  for (const CopyPart& part : parts_) {
    if (part.size_bytes() <= kTinyBytes) continue;
    if (part.height > 1) {
      move_rows(part, 0, part.height / 2);
    } else {
      move_bytes(part, 0, part.width / 2);
    }
  }
}

cuda::CUresult CopyWork::finish() {
  for (const CopyPart& part : parts_) {
    const bool tiny = part.size_bytes() <= kTinyBytes;
    if (part.height > 1) {
      move_rows(part, tiny ? 0 : part.height / 2, part.height);
    } else {
      move_bytes(part, tiny ? 0 : part.width / 2, part.width);
    }
    if (wrong_) flip(part, part.size_bytes() / 2);
  }
  return cuda::CUresult::kSuccess;
}

void CopyWork::spoil_a_byte(std::uint64_t seed) {
  const std::uint64_t anywhere = seed * 0x9e37'79b9'7f4a'7c15u;
  const CopyPart& part = parts_[anywhere % parts_.size()];
  flip(part, (anywhere >> 16) % part.size_bytes());
}

void CopyWork::flip(const CopyPart& part, std::size_t index) const {
  const LockAll locked(locks_);
  part.to[index / part.width * part.to_pitch + index % part.width] ^= std::byte{0xff};
}

void CopyWork::move_rows(const CopyPart& part, std::size_t first, std::size_t end) const {
  const std::size_t rows_at_once = std::max<std::size_t>(kPieceBytes / part.width, 1);
  while (first < end) {
    const LockAll locked(locks_);
    for (const std::size_t stop = std::min(first + rows_at_once, end); first < stop; ++first) {
      std::memcpy(part.to + first * part.to_pitch, part.from + first * part.from_pitch, part.width);
    }
  }
}

void CopyWork::move_bytes(const CopyPart& part, std::size_t first, std::size_t end) const {
  while (first < end) {
    const std::size_t bytes = std::min(kPieceBytes, end - first);
    const LockAll locked(locks_);
    std::memcpy(part.to + first, part.from + first, bytes);
    first += bytes;
  }
}

}  // namespace slackwater::sim
