// HugePagePolicy: decides for each slab of a pool whether it is touched with huge pages. They are faster as a rule. On
// a machine with fragmented memory the kernel compacts memory for each of them, which can be many times slower than
// plain 4 KiB pages. So slow huge pages are compared with a few slabs of plain pages, and given up if they lose.
// Owner: SlabToucher. Thread rule: one thread at a time. It reads no clock: the caller measures.
#pragma once

#include <chrono>
#include <cstdint>

namespace slackwater {

class HugePagePolicy {
 public:
  // Whether the next slab is touched with huge pages. Once given_up() is true, it never is again.
  [[nodiscard]] bool next();
  // How long it took to touch a slab. Results may come in any order.
  void record(bool huge, std::uint64_t size_bytes, std::chrono::nanoseconds took);
  [[nodiscard]] bool given_up() const { return given_up_; }

 private:
  void compare();

  double huge_ = 0;                // nanoseconds per byte, the better of the last two slabs
  double last_huge_ = 0;           // of the last slab; 0: there was none
  double plain_ = 0;               // the best of the trials
  std::uint32_t slow_ = 0;         // slow huge slabs since the last comparison
  std::uint32_t slow_to_try_ = 2;  // how many it takes to try plain pages
  std::uint32_t trials_ = 0;       // slabs still to be touched with plain pages
  std::uint32_t results_ = 0;      // of trials that are still missing
  bool given_up_ = false;
};

}  // namespace slackwater
