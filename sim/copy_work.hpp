// CopyWork: the bytes of one copy. Of every part that is not tiny, one half moves when the copy's time window opens
// and the rest when it closes: a copy that does not wait for its producer, or an update that does not wait for the
// copy, leaves torn bytes behind.
// Thread rule: run by the engine's thread; takes the memory locks of the devices it touches, a piece at a time.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "sim/work.hpp"

namespace slackwater::sim {

// Rows of `width` bytes; a plain copy is one row.
struct CopyPart {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  std::size_t width = 0;
  std::size_t height = 1;
  std::size_t from_pitch = 0;
  std::size_t to_pitch = 0;

  [[nodiscard]] std::size_t size_bytes() const { return width * height; }
};

class CopyWork final : public Work {
 public:
  // `locks`: of the devices whose memory is touched, in the order of devices, without repetition. `held`: what must
  // stay until the copy is over.
  CopyWork(std::vector<CopyPart> parts, std::vector<std::mutex*> locks, std::vector<std::shared_ptr<const void>> held);

  void begin() override;
  [[nodiscard]] cuda::CUresult finish() override;

 private:
  void move_rows(const CopyPart& part, std::size_t first, std::size_t behind) const;
  void move_bytes(const CopyPart& part, std::size_t first, std::size_t behind) const;

  const std::vector<CopyPart> parts_;
  const std::vector<std::mutex*> locks_;
  const std::vector<std::shared_ptr<const void>> held_;
};

}  // namespace slackwater::sim
