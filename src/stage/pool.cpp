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
#include "base/thread.hpp"
#include "base/units.hpp"

namespace slackwater {
namespace {

constexpr std::uint64_t kHugePageBytes = 2u << 20;
constexpr std::uint64_t kPageBytes = 4096;
constexpr std::uint64_t kSlabMultiple = 1u << 20;
constexpr std::uint64_t kMaxPoolBytes = std::uint64_t{1} << 62;
constexpr std::chrono::hours kLongestTimeout{24 * 365};  // keeps deadlines within the clock's range

// Aligned to huge pages: maps too much, gives the ends back.
Result<std::byte*> map_aligned(std::uint64_t size_bytes) {
  const std::uint64_t mapped_bytes = size_bytes + kHugePageBytes;
  void* const mapped = ::mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    Error error = error_from_errno(
        errno, fmt::format("cannot map {} for the pool; give it a smaller size", format_bytes(size_bytes)));
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

// A wish, too: a node that is full, or not permitted, is passed over.
void prefer_node(std::byte* base, std::uint64_t size_bytes, int node) {
  constexpr int kWordBits = 8 * sizeof(unsigned long);
  std::vector<unsigned long> mask(static_cast<std::size_t>(node / kWordBits) + 1);
  mask.back() = 1ul << (node % kWordBits);
  (void)::syscall(SYS_mbind, base, size_bytes, MPOL_PREFERRED, mask.data(), mask.size() * kWordBits + 1, 0);
}

// In steps of a huge page: the kernel holds the lock of the address space meanwhile, and the trainer may want to map
// memory.
void touch_pages(std::span<std::byte> memory) {
  for (std::uint64_t at = 0; at < memory.size(); at += kHugePageBytes) {
    const auto step = memory.subspan(at, std::min(kHugePageBytes, memory.size() - at));
    if (::madvise(step.data(), step.size(), MADV_POPULATE_WRITE) == 0) continue;
    for (std::uint64_t page = 0; page < step.size(); page += kPageBytes) {
      *static_cast<volatile std::byte*>(&step[page]) = std::byte{0};
    }
  }
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
                                           std::function<void(int index, std::span<std::byte>)> on_ready,
                                           int numa_node) {
  if (slab_bytes == 0 || slab_bytes % kSlabMultiple != 0) {
    return fail(ErrorKind::kInvalidArgument,
                fmt::format("a slab of {} bytes is not possible: give a multiple of 1 MiB", slab_bytes));
  }
  if (slab_count < 2) {
    return fail(ErrorKind::kInvalidArgument,
                fmt::format("a pool needs at least two slabs of {}, not {}", format_bytes(slab_bytes), slab_count));
  }
  if (slab_bytes > kMaxPoolBytes / slab_count) {
    return fail(ErrorKind::kOutOfMemory, fmt::format("a pool of {} slabs of {} does not fit any address space",
                                                     slab_count, format_bytes(slab_bytes)));
  }
  const std::uint64_t size_bytes = slab_bytes * slab_count;
  SW_ASSIGN(std::byte* const base, map_aligned(size_bytes));
  // Advice: the pool works without huge pages too, and the engine disowns itself in a child on its own as well.
  (void)::madvise(base, size_bytes, MADV_HUGEPAGE);
  (void)::madvise(base, size_bytes, MADV_DONTFORK);
  if (numa_node >= 0) prefer_node(base, size_bytes, numa_node);

  std::unique_ptr<Pool> pool(new Pool(slab_bytes, slab_count, base));
  pool->on_ready_ = std::move(on_ready);
  pool->toucher_ = std::make_unique<std::jthread>(
      start_thread("sw-touch", [raw = pool.get()](std::stop_token stop) { raw->touch(std::move(stop)); }));
  return pool;
}

Pool::Pool(std::uint64_t slab_bytes, std::uint32_t slab_count, std::byte* base)
    : slab_bytes_(slab_bytes), slab_count_(slab_count), base_(base) {
  free_.reserve(slab_count);
}

Pool::~Pool() {
  toucher_.reset();
  ::munmap(base_, slab_bytes_ * slab_count_);
}

void Pool::touch(std::stop_token stop) {
  for (std::uint32_t i = 0; i < slab_count_ && !stop.stop_requested(); ++i) {
    const auto memory = slab(static_cast<int>(i));
    touch_pages(memory);
    if (on_ready_) on_ready_(static_cast<int>(i), memory);
    {
      const std::lock_guard lock(mutex_);
      free_.push_back(static_cast<int>(i));
      ++touched_;
      ++came_free_;
    }
    changed_.notify_all();
  }
}

void Pool::give_back(int index) {
  // Notified under the lock: whoever sees the last slab back may destroy the pool at once.
  const std::lock_guard lock(mutex_);
  free_.push_back(index);
  ++came_free_;
  changed_.notify_all();
}

Lease Pool::take() {
  // The slab that came back last: its lines and page entries are the warmest.
  const int index = free_.back();
  free_.pop_back();
  return {this, index, slab(index)};
}

Result<Lease> Pool::acquire(std::chrono::nanoseconds stall_timeout, std::stop_token stop) {
  std::unique_lock lock(mutex_);
  const std::uint64_t ticket = next_ticket_++;
  waiting_.push_back(ticket);
  const auto my_turn = [&] { return waiting_.front() == ticket && !free_.empty(); };
  // Whoever leaves may have been what the next one waited for.
  const auto leave = [&] {
    std::erase(waiting_, ticket);
    if (!waiting_.empty() && !free_.empty()) changed_.notify_all();
  };

  const std::chrono::nanoseconds patience = std::min<std::chrono::nanoseconds>(stall_timeout, kLongestTimeout);
  std::uint64_t seen = came_free_;
  auto deadline = std::chrono::steady_clock::now() + patience;
  while (!stop.stop_requested()) {
    if (my_turn()) {
      Lease lease = take();
      leave();
      return lease;
    }
    const bool something_happened =
        changed_.wait_until(lock, stop, deadline, [&] { return my_turn() || came_free_ != seen; });
    if (!something_happened && !stop.stop_requested()) {
      leave();
      return fail(Error{.kind = ErrorKind::kTimeout,
                        .message = fmt::format("no slab of the pool ({} of {}) came free for {}; storage has stopped "
                                               "taking writes",
                                               slab_count_, format_bytes(slab_bytes_),
                                               format_seconds(std::chrono::duration<double>(stall_timeout).count())),
                        .path = {},
                        .sys_errno = 0,
                        .retryable = true});
    }
    if (came_free_ != seen) {
      seen = came_free_;
      deadline = std::chrono::steady_clock::now() + patience;
    }
  }
  leave();
  return fail(ErrorKind::kClosed, "gave up waiting for a slab of the pool, because it was told to stop");
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

void Pool::wait_touched() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return touched_ == slab_count_; });
}

}  // namespace slackwater
