// Pool: the bounded set of slabs; the only large memory the engine owns. One mapping, huge pages asked for, kept out of
// forked children (MADV_DONTFORK), touched in the background by a thread of its own; a slab can be leased once it has
// been touched.
// Thread rule: thread-safe. Lifetime: outlives its leases; the destructor requires that all came back.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <thread>
#include <vector>

#include "slackwater/error.hpp"

namespace slackwater {

class Pool;

// One slab on loan. Move-only; returns itself.
class Lease {
 public:
  Lease() = default;
  Lease(Lease&& other) noexcept;
  Lease& operator=(Lease&& other) noexcept;
  ~Lease();

  [[nodiscard]] explicit operator bool() const { return pool_ != nullptr; }
  [[nodiscard]] std::span<std::byte> memory() const { return memory_; }
  [[nodiscard]] int index() const { return index_; }  // of the slab in the pool: its registered-buffer number
  void release();                                     // idempotent

 private:
  friend class Pool;
  Lease(Pool* pool, int index, std::span<std::byte> memory) : pool_(pool), index_(index), memory_(memory) {}
  Pool* pool_ = nullptr;
  int index_ = -1;
  std::span<std::byte> memory_;
};

class Pool {
 public:
  // At least two slabs; slab_bytes a multiple of 1 MiB. kOutOfMemory when the mapping fails.
  // `on_ready` (optional) is called from the touching thread for each slab, before it can be leased.
  // `numa_node`: where its pages are wished for; -1: wherever they are touched.
  [[nodiscard]] static Result<std::unique_ptr<Pool>> create(
      std::uint64_t slab_bytes, std::uint32_t slab_count,
      std::function<void(int index, std::span<std::byte>)> on_ready = {}, int numa_node = -1);
  ~Pool();

  // Waits for a free slab. First come, first served among waiters. kTimeout when none came free for `stall_timeout`
  // (any slab that comes free, to whomever, starts the time anew); kClosed when `stop` is requested.
  [[nodiscard]] Result<Lease> acquire(std::chrono::nanoseconds stall_timeout, std::stop_token stop);
  [[nodiscard]] std::optional<Lease> try_acquire();

  [[nodiscard]] std::span<std::byte> memory() const { return {base_, slab_bytes_ * slab_count_}; }  // of all slabs
  [[nodiscard]] std::uint64_t slab_bytes() const { return slab_bytes_; }
  [[nodiscard]] std::uint32_t slab_count() const { return slab_count_; }
  [[nodiscard]] std::uint32_t free_count() const;
  [[nodiscard]] std::uint32_t waiting_count() const;  // callers inside acquire() without a slab
  void wait_touched();                                // until every slab has been touched; for benchmarks

 private:
  friend class Lease;
  Pool(std::uint64_t slab_bytes, std::uint32_t slab_count, std::byte* base);
  void give_back(int index);
  void touch(std::stop_token stop);
  [[nodiscard]] Lease take();  // needs mutex_ held and a free slab
  [[nodiscard]] std::span<std::byte> slab(int index) const {
    return {base_ + static_cast<std::uint64_t>(index) * slab_bytes_, slab_bytes_};
  }

  const std::uint64_t slab_bytes_;
  const std::uint32_t slab_count_;
  std::byte* const base_;
  std::function<void(int, std::span<std::byte>)> on_ready_;

  mutable std::mutex mutex_;
  std::condition_variable_any changed_;
  std::vector<int> free_;                  // guarded by mutex_; the last one is lent first
  std::deque<std::uint64_t> waiting_;      // guarded by mutex_; tickets, the front one is served next
  std::uint64_t next_ticket_ = 0;          // guarded by mutex_
  std::uint64_t came_free_ = 0;            // guarded by mutex_; how often a slab came free, to see progress
  std::uint32_t touched_ = 0;              // guarded by mutex_
  std::unique_ptr<std::jthread> toucher_;  // started last
};

}  // namespace slackwater
