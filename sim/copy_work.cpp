#include "sim/copy_work.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace slackwater::sim {
namespace {

constexpr std::size_t kTinyBytes = 256;        // moves as a whole, at the end
constexpr std::size_t kPieceBytes = 1u << 20;  // moved under one hold of the locks: kernels get in between

class HoldAll {
 public:
  explicit HoldAll(const std::vector<std::mutex*>& locks) : locks_(locks) {
    for (std::mutex* lock : locks_) lock->lock();
  }
  ~HoldAll() {
    for (std::mutex* lock : locks_) lock->unlock();
  }
  HoldAll(const HoldAll&) = delete;
  HoldAll& operator=(const HoldAll&) = delete;

 private:
  const std::vector<std::mutex*>& locks_;
};

}  // namespace

CopyWork::CopyWork(std::vector<CopyPart> parts, std::vector<std::mutex*> locks,
                   std::vector<std::shared_ptr<const void>> held)
    : parts_(std::move(parts)), locks_(std::move(locks)), held_(std::move(held)) {}

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
  }
  return cuda::CUresult::kSuccess;
}

void CopyWork::move_rows(const CopyPart& part, std::size_t first, std::size_t behind) const {
  const std::size_t rows_at_once = std::max<std::size_t>(kPieceBytes / part.width, 1);
  while (first < behind) {
    const HoldAll hold(locks_);
    for (const std::size_t stop = std::min(first + rows_at_once, behind); first < stop; ++first) {
      std::memcpy(part.to + first * part.to_pitch, part.from + first * part.from_pitch, part.width);
    }
  }
}

void CopyWork::move_bytes(const CopyPart& part, std::size_t first, std::size_t behind) const {
  while (first < behind) {
    const std::size_t bytes = std::min(kPieceBytes, behind - first);
    const HoldAll hold(locks_);
    std::memcpy(part.to + first, part.from + first, bytes);
    first += bytes;
  }
}

}  // namespace slackwater::sim
