// Pool: the bounded set of slabs, and the only large memory the engine owns. It is one mapping, with huge pages where
// the kernel grants them, and it stays out of forked children (MADV_DONTFORK). A SlabToucher faults the pages in, in
// the background. A slab can be leased once all of its pages are there. So the first snapshot need not wait for the
// whole pool: it uses the slabs that are ready, and uses them again once they are written.
// Owner: the engine's Pipeline, or a reader that was given no pool to use.
// Thread rule: thread-safe. Lifetime: outlives its leases; the destructor requires that all of them came back.
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
#include <vector>

#include "slackwater/error.hpp"
#include "stage/slab_toucher.hpp"

namespace slackwater {

class Pool;

// One slab on loan. Move-only; the destructor gives it back.
class Lease {
 public:
  Lease() = default;
  Lease(Lease&& other) noexcept;
  Lease& operator=(Lease&& other) noexcept;
  ~Lease();

  [[nodiscard]] explicit operator bool() const { return pool_ != nullptr; }
  [[nodiscard]] std::span<std::byte> memory() const { return memory_; }
  [[nodiscard]] int index() const { return index_; }  // of the slab in the pool; also its registered-buffer number
  void release();                                     // idempotent

 private:
  friend class Pool;
  Lease(Pool* pool, int index, std::span<std::byte> memory) : pool_(pool), index_(index), memory_(memory) {}
  Pool* pool_ = nullptr;
  int index_ = -1;
  std::span<std::byte> memory_;
};

// Memory that the caller has, instead of the pool's own. It begins at a huge-page boundary.
struct PoolMemory {
  std::span<std::byte> bytes;           // as many as the slabs have
  std::shared_ptr<void> owner;          // keeps it mapped
  std::vector<std::uint32_t> reserved;  // slabs that hold something: take_reserved() lends them, nobody else
  // Called without a lock when there is no free slab for a caller of acquire(), each time before it waits.
  std::function<void()> on_starved = {};
};

class Pool {
 public:
  // At least two slabs; slab_bytes a multiple of 1 MiB. kOutOfMemory if the mapping fails.
  // `on_ready` (optional) is called from the touching threads for each slab, one at a time, before it can be leased.
  // `numa_node`: the node to prefer for the pages; -1 for the one that touches them.
  [[nodiscard]] static Result<std::unique_ptr<Pool>> create(
      std::uint64_t slab_bytes, std::uint32_t slab_count,
      std::function<void(int index, std::span<std::byte>)> on_ready = {}, int numa_node = -1,
      TouchOptions touching = {}, std::optional<PoolMemory> memory = {});
  ~Pool();

  // Waits for a free slab; waiters are served in the order they came. kTimeout if no slab came free for `stall_timeout`
  // (a slab that goes to another waiter also restarts the clock). kClosed if `stop` was requested.
  [[nodiscard]] Result<Lease> acquire(std::chrono::nanoseconds stall_timeout, std::stop_token stop);
  // Takes nothing from those who wait: nullopt while there are any.
  [[nodiscard]] std::optional<Lease> try_acquire();
  // Once for each reserved slab. When the lease ends, the slab is like any other.
  [[nodiscard]] Lease take_reserved(int index) { return {this, index, slab(index)}; }

  [[nodiscard]] std::span<std::byte> memory() const { return {base_, slab_bytes_ * slab_count_}; }  // of all slabs
  [[nodiscard]] std::uint64_t slab_bytes() const { return slab_bytes_; }
  [[nodiscard]] std::uint32_t slab_count() const { return slab_count_; }
  [[nodiscard]] std::uint32_t free_count() const;
  [[nodiscard]] std::uint32_t waiting_count() const;  // callers inside acquire() without a slab
  [[nodiscard]] std::uint32_t touched_count() const;  // slabs that are ready, leased or not
  // False if most of what is touched lies on other NUMA nodes, or if nothing is touched yet. nullopt if the kernel does
  // not tell.
  [[nodiscard]] std::optional<bool> mostly_on(int numa_node) const;
  void wait_touched();                                                     // until every slab is ready
  [[nodiscard]] bool wait_touched_for(std::chrono::milliseconds timeout);  // false: not yet

 private:
  friend class Lease;
  Pool(std::uint64_t slab_bytes, std::uint32_t slab_count, std::byte* base);
  void give_back(int index);
  void slab_touched(int index);
  void announce(int index, std::unique_lock<std::mutex>& lock);  // calls on_ready_
  [[nodiscard]] bool in_a_hurry() const {                        // needs mutex_
    return stopping_ || impatient_ > 0 || (free_.empty() && !waiting_.empty());
  }
  [[nodiscard]] Lease take();  // needs mutex_ held and a free slab
  [[nodiscard]] std::span<std::byte> slab(int index) const {
    return {base_ + static_cast<std::uint64_t>(index) * slab_bytes_, slab_bytes_};
  }

  const std::uint64_t slab_bytes_;
  const std::uint32_t slab_count_;
  std::byte* const base_;
  std::optional<PoolMemory> given_;  // none: the memory is the pool's own
  std::vector<bool> reserved_;       // by slab
  std::function<void(int, std::span<std::byte>)> on_ready_;
  std::function<Duration()> pause_;

  mutable std::mutex mutex_;
  std::condition_variable_any changed_;
  std::vector<int> free_;              // guarded by mutex_; the last one is leased first
  std::deque<std::uint64_t> waiting_;  // guarded by mutex_; tickets; the front one is served next
  std::uint64_t next_ticket_ = 0;      // guarded by mutex_
  std::uint64_t came_free_ = 0;        // guarded by mutex_; how often a slab came free: shows progress
  std::uint32_t touched_ = 0;          // guarded by mutex_, like what follows
  bool announcing_ = false;            // a touching thread is inside on_ready_
  TimePoint quiet_until_{};            // the next one may begin, if nobody is in a hurry
  std::uint32_t impatient_ = 0;        // callers of wait_touched() and wait_touched_for()
  bool stopping_ = false;
  std::unique_ptr<SlabToucher> toucher_;  // started last
};

}  // namespace slackwater
