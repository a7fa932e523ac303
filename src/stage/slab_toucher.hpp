// SlabToucher: faults in the pages of a pool, slab by slab, on threads of its own ("sw-touch-N"). Fresh memory can be
// as slow as 0.3 GB/s, because the kernel finds and clears every page. So several threads share the slabs, and huge
// pages are given up where they are slow (HugePagePolicy).
// Owner: Pool. Thread rule: made and destroyed by the pool's owner. Lifetime: the memory and the clock outlive it; the
// destructor stops the threads after the slab in hand and joins them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <thread>
#include <vector>

#include "base/log.hpp"
#include "os/clock.hpp"
#include "stage/huge_page_policy.hpp"

namespace slackwater {

inline constexpr std::uint64_t kHugePageBytes = 2u << 20;

struct TouchOptions {
  unsigned threads = 1;
  const Clock* clock = nullptr;  // null: the system's
  std::optional<Log> log = {};   // none: says nothing
  // Asked after each on_ready: how long the next one should wait. It does not while somebody waits for a slab.
  std::function<Duration()> pause = {};
  // For tests, instead of touching `slab` for real.
  std::function<void(std::span<std::byte> slab, bool huge)> touch = {};
};

class SlabToucher {
 public:
  // `on_touched` is called from these threads, several at once, for each slab as soon as all of its pages are there.
  // Throws std::system_error if not even one thread can be started.
  SlabToucher(std::span<std::byte> memory, std::uint64_t slab_bytes, TouchOptions options,
              std::function<void(int index)> on_touched);

 private:
  void run(const std::stop_token& stop);
  struct Piece {
    int index = 0;
    bool huge = true;
  };
  [[nodiscard]] std::optional<Piece> next();
  void record(Piece piece, Duration took);
  [[nodiscard]] std::span<std::byte> slab(int index) const;

  const std::span<std::byte> memory_;
  const std::uint64_t slab_bytes_;
  const int slab_count_;
  const TouchOptions options_;
  const SystemClock system_clock_;
  const Clock& clock_;
  const std::function<void(int)> on_touched_;
  const TimePoint began_;

  std::mutex mutex_;  // guards what follows
  HugePagePolicy policy_;
  int next_ = 0;  // the slab touched next
  int touched_ = 0;
  TimePoint told_;                     // of the last line in the log
  bool plain_to_the_end_ = false;      // the kernel was told
  std::vector<std::jthread> threads_;  // started last
};

}  // namespace slackwater
