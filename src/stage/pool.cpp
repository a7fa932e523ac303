#include "stage/pool.hpp"

#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include <fmt/format.h>

#include "base/error.hpp"
#include "base/result.hpp"
#include "base/units.hpp"

namespace slackwater {
namespace {

constexpr std::uint64_t kSlabMultiple = 1u << 20;
constexpr std::uint64_t kMaxPoolBytes = std::uint64_t{1} << 62;
constexpr std::chrono::hours kLongestTimeout{24 * 365};  // keeps deadlines within the clock's range

// Maps one huge page too much and unmaps the ends, so that the pool begins at a huge-page boundary.
Result<std::byte*> map_aligned(std::uint64_t size_bytes) {
  const std::uint64_t mapped_bytes = size_bytes + kHugePageBytes;
  void* const mapped = ::mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    Error error =
        error_from_errno(errno, fmt::format("cannot map {} for the pool; make it smaller", format_bytes(size_bytes)));
    error.kind = ErrorKind::kOutOfMemory;
    return fail(std::move(error));
  }
  auto* const begin = static_cast<std::byte*>(mapped);
  const auto address = reinterpret_cast<std::uintptr_t>(mapped);
  const std::uint64_t before = round_up(address, kHugePageBytes) - address;
  const std::uint64_t after = kHugePageBytes - before;
  if (before > 0) ::munmap(begin, before);
  if (after > 0) ::munmap(begin + before + size_bytes, after);
  return begin + before;
}

// Advice as well: if the node is full or not permitted, the kernel takes another one.
void prefer_node(std::byte* base, std::uint64_t size_bytes, int node) {
  constexpr int kWordBits = 8 * sizeof(unsigned long);
  std::vector<unsigned long> mask(static_cast<std::size_t>(node / kWordBits) + 1);
  mask.back() = 1ul << (node % kWordBits);
  (void)::syscall(SYS_mbind, base, size_bytes, MPOL_PREFERRED, mask.data(), mask.size() * kWordBits + 1, 0);
}

}  // namespace

Lease::Lease(Lease&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)),
      index_(std::exchange(other.index_, -1)),
      memory_(std::exchange(other.memory_, {})) {}

Lease& Lease::operator=(Lease&& other) noexcept {
  if (this != &other) {
    release();
    pool_ = std::exchange(other.pool_, nullptr);
    index_ = std::exchange(other.index_, -1);
    memory_ = std::exchange(other.memory_, {});
  }
  return *this;
}

Lease::~Lease() { release(); }

void Lease::release() {
  if (pool_ == nullptr) return;
  memory_ = {};
  std::exchange(pool_, nullptr)->give_back(std::exchange(index_, -1));
}

Result<std::unique_ptr<Pool>> Pool::create(std::uint64_t slab_bytes, std::uint32_t slab_count,
                                           std::function<void(int index, std::span<std::byte>)> on_ready, int numa_node,
                                           TouchOptions touching, std::optional<PoolMemory> memory) {
  if (slab_bytes == 0 || slab_bytes % kSlabMultiple != 0) {
    return fail(ErrorKind::kInvalidArgument,
                fmt::format("a slab cannot have {} bytes; use a multiple of 1 MiB", slab_bytes));
  }
  if (slab_count < 2) {
    return fail(ErrorKind::kInvalidArgument,
                fmt::format("a pool needs at least two slabs of {}, not {}", format_bytes(slab_bytes), slab_count));
  }
  if (slab_bytes > kMaxPoolBytes / slab_count) {
    return fail(ErrorKind::kOutOfMemory, fmt::format("a pool of {} slabs of {} does not fit into any address space",
                                                     slab_count, format_bytes(slab_bytes)));
  }
  const std::uint64_t size_bytes = slab_bytes * slab_count;
  if (memory && memory->bytes.size() != size_bytes)
    return fail(ErrorKind::kInternal, "the memory for the pool does not have the size of its slabs");
  std::byte* base = memory ? memory->bytes.data() : nullptr;
  if (!memory) {
    SW_ASSIGN(base, map_aligned(size_bytes));
  }
  // Both are advice. The pool works without huge pages, and a forked child disowns the engine anyway (fork guard).
  (void)::madvise(base, size_bytes, MADV_HUGEPAGE);
  (void)::madvise(base, size_bytes, MADV_DONTFORK);
  if (numa_node >= 0) prefer_node(base, size_bytes, numa_node);

  std::unique_ptr<Pool> pool(new Pool(slab_bytes, slab_count, base));
  pool->on_ready_ = std::move(on_ready);
  pool->pause_ = touching.pause;
  if (memory) {
    for (const std::uint32_t slab : memory->reserved) pool->reserved_.at(slab) = true;
    pool->given_ = std::move(memory);
  }
  pool->toucher_ = std::make_unique<SlabToucher>(pool->memory(), slab_bytes, std::move(touching),
                                                 [raw = pool.get()](int index) { raw->slab_touched(index); });
  return pool;
}

Pool::Pool(std::uint64_t slab_bytes, std::uint32_t slab_count, std::byte* base)
    : slab_bytes_(slab_bytes), slab_count_(slab_count), base_(base), reserved_(slab_count) {
  free_.reserve(slab_count);
}

Pool::~Pool() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  toucher_.reset();
  if (!given_) ::munmap(base_, slab_bytes_ * slab_count_);
}

void Pool::slab_touched(int index) {
  // Touched and announced before it can be leased. Touching may write zeros, which must not hit copied bytes, and a
  // slab that is registered late would be written without its registration.
  std::unique_lock lock(mutex_);
  if (on_ready_) announce(index, lock);
  if (!reserved_[static_cast<std::size_t>(index)]) free_.push_back(index);
  ++touched_;
  ++came_free_;
  changed_.notify_all();
}

// Needs the lock; releases it while it waits and calls. The slab is free before the lock is released again, so whoever
// waits for a slab hurries one announcement, not all of them.
void Pool::announce(int index, std::unique_lock<std::mutex>& lock) {
  while (announcing_ || (!in_a_hurry() && std::chrono::steady_clock::now() < quiet_until_)) {
    if (announcing_) {
      changed_.wait(lock);
    } else {
      const auto until = quiet_until_;  // wait_until() reads it without the lock, when another thread may change it
      changed_.wait_until(lock, until);
    }
  }
  announcing_ = true;
  lock.unlock();
  on_ready_(index, slab(index));
  const Duration pause = pause_ ? pause_() : Duration::zero();
  lock.lock();
  announcing_ = false;
  quiet_until_ = std::chrono::steady_clock::now() + pause;
}

void Pool::give_back(int index) {
  // Notify under the lock: whoever sees that the last slab is back may destroy the pool at once.
  const std::lock_guard lock(mutex_);
  free_.push_back(index);
  ++came_free_;
  changed_.notify_all();
}

Lease Pool::take() {
  // The slab that came back last is the warmest in the caches and the TLB.
  const int index = free_.back();
  free_.pop_back();
  return {this, index, slab(index)};
}

Result<Lease> Pool::acquire(std::chrono::nanoseconds stall_timeout, std::stop_token stop) {
  std::unique_lock lock(mutex_);
  // Tickets make it fair. Without them a late snapshot could take every slab that the front one waits for.
  const std::uint64_t ticket = next_ticket_++;
  waiting_.push_back(ticket);
  const auto my_turn = [&] { return waiting_.front() == ticket && !free_.empty(); };
  // The next waiter may have been waiting only for this one to leave.
  const auto leave = [&] {
    std::erase(waiting_, ticket);
    if (!waiting_.empty() && !free_.empty()) changed_.notify_all();
  };

  const std::chrono::nanoseconds time_limit = std::min<std::chrono::nanoseconds>(stall_timeout, kLongestTimeout);
  if (free_.empty()) changed_.notify_all();  // a touching thread that pauses: announce()
  std::uint64_t seen = came_free_;
  auto deadline = std::chrono::steady_clock::now() + time_limit;
  while (!stop.stop_requested()) {
    if (my_turn()) {
      Lease lease = take();
      leave();
      return lease;
    }
    if (given_ && given_->on_starved && free_.empty()) {
      lock.unlock();
      given_->on_starved();
      lock.lock();
      if (my_turn() || came_free_ != seen) {  // it may have made room, or somebody else did
        seen = came_free_;
        deadline = std::chrono::steady_clock::now() + time_limit;
        continue;
      }
    }
    const bool progressed = changed_.wait_until(lock, stop, deadline, [&] { return my_turn() || came_free_ != seen; });
    if (!progressed && !stop.stop_requested()) {
      leave();
      return fail(
          Error{.kind = ErrorKind::kTimeout,
                .message = fmt::format("none of the {} slabs of {} came free for {}; storage has stopped taking "
                                       "writes",
                                       slab_count_, format_bytes(slab_bytes_),
                                       format_seconds(std::chrono::duration<double>(stall_timeout).count())),
                .path = {},
                .sys_errno = 0,
                .retryable = true});
    }
    // Slow storage is no stall: as long as slabs come back, this waiter's turn will come.
    if (came_free_ != seen) {
      seen = came_free_;
      deadline = std::chrono::steady_clock::now() + time_limit;
    }
  }
  leave();
  return fail(ErrorKind::kClosed, "stopped waiting for a free slab, as requested");
}

std::optional<Lease> Pool::try_acquire() {
  const std::lock_guard lock(mutex_);
  if (free_.empty() || !waiting_.empty()) return std::nullopt;
  return take();
}

std::uint32_t Pool::free_count() const {
  const std::lock_guard lock(mutex_);
  return static_cast<std::uint32_t>(free_.size());
}

std::uint32_t Pool::waiting_count() const {
  const std::lock_guard lock(mutex_);
  return static_cast<std::uint32_t>(waiting_.size());
}

std::uint32_t Pool::touched_count() const {
  const std::lock_guard lock(mutex_);
  return touched_;
}

// Looks at one page of up to 16 slabs. Slabs are touched in order, but for the last few.
std::optional<bool> Pool::mostly_on(int numa_node) const {
  constexpr std::uint32_t kLooks = 16;
  const std::uint32_t touched = touched_count();
  const std::uint32_t looks = std::min(touched, kLooks);
  std::uint32_t there = 0;
  for (std::uint32_t look = 0; look < looks; ++look) {
    const auto index = static_cast<int>(std::uint64_t{touched} * look / looks);
    int node = -1;
    if (::syscall(SYS_get_mempolicy, &node, nullptr, 0, slab(index).data(), MPOL_F_NODE | MPOL_F_ADDR) != 0)
      return std::nullopt;
    if (node == numa_node) ++there;
  }
  return 2 * there > looks;
}

void Pool::wait_touched() {
  std::unique_lock lock(mutex_);
  ++impatient_;
  changed_.notify_all();
  changed_.wait(lock, [&] { return touched_ == slab_count_; });
  --impatient_;
}

bool Pool::wait_touched_for(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  ++impatient_;
  changed_.notify_all();
  const bool touched = changed_.wait_for(lock, timeout, [&] { return touched_ == slab_count_; });
  --impatient_;
  return touched;
}

}  // namespace slackwater
