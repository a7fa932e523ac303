// CopyWork: moves the bytes of one copy. Half of every part that is not tiny moves when the copy's time begins, the
// rest when it ends. So a copy that does not wait for its producer, or an update that does not wait for the copy,
// leaves torn bytes.
// Owner: its Op. Thread rule: the engine's thread runs it. It takes the memory locks of its devices for one piece at a
// time.
#pragma once

#include <cstddef>
#include <cstdint>
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
  // `locks` are those of the devices whose memory is touched, in the order of devices and without repetition. `held` is
  // what must stay alive until the copy is done.
  // With `wrong`, one byte of every part arrives changed.
  CopyWork(std::vector<CopyPart> parts, std::vector<std::mutex*> locks, std::vector<std::shared_ptr<const void>> held,
           bool wrong);

  void begin() override;
  [[nodiscard]] cuda::CUresult finish() override;
  void spoil_a_byte(std::uint64_t seed) override;  // of one part

 private:
  void move_rows(const CopyPart& part, std::size_t first, std::size_t end) const;
  void move_bytes(const CopyPart& part, std::size_t first, std::size_t end) const;
  void flip(const CopyPart& part, std::size_t index) const;

  const std::vector<CopyPart> parts_;
  const std::vector<std::mutex*> locks_;
  const std::vector<std::shared_ptr<const void>> held_;
  const bool wrong_;
};

}  // namespace slackwater::sim
