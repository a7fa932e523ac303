#include "device/cuda/objects.hpp"

#include <algorithm>
#include <limits>

#include "base/result.hpp"
#include "base/units.hpp"

namespace slackwater::cuda {
namespace {

constexpr std::uint64_t kMemoryUnitBytes = 64u << 10;

}  // namespace

Status Stream::open() {
  const Driver& driver = context_.driver();
  int lowest = 0;
  int highest = 0;
  SW_TRY(context_.check(driver.cuCtxGetStreamPriorityRange(&lowest, &highest), "cuCtxGetStreamPriorityRange"));
  return context_.check(driver.cuStreamCreateWithPriority(&stream_, kStreamNonBlocking, lowest),
                        "cuStreamCreateWithPriority");
}

Stream::~Stream() {
  if (stream_ == nullptr) return;
  const Scope scope(context_);
  (void)context_.driver().cuStreamDestroy_v2(stream_);
}

EventPool::~EventPool() {
  const Scope scope(context_);
  for (CUevent event : free_) (void)context_.driver().cuEventDestroy_v2(event);
}

Status EventPool::fill(std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    SW_ASSIGN(CUevent event, make());
    give_back(event);
  }
  return {};
}

Result<CUevent> EventPool::take() {
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      CUevent event = free_.back();
      free_.pop_back();
      return event;
    }
  }
  return make();
}

Result<CUevent> EventPool::make() const {
  CUevent event = nullptr;
  SW_TRY(context_.check(context_.driver().cuEventCreate(&event, kEventBlockingSync | kEventDisableTiming),
                        "cuEventCreate"));
  return event;
}

void EventPool::give_back(CUevent event) {
  const std::lock_guard lock(mutex_);
  free_.push_back(event);
}

Result<std::shared_ptr<StreamEvent>> StreamEvent::record(EventPool& pool, std::span<const CUstream> streams) {
  auto point = std::make_shared<StreamEvent>(pool);
  const Context& context = pool.context();
  point->events_.reserve(streams.size());
  for (CUstream stream : streams) {
    SW_ASSIGN(CUevent event, pool.take());
    point->events_.push_back(event);
    SW_TRY(context.check(context.driver().cuEventRecord(event, stream), "cuEventRecord"));
  }
  return point;
}

StreamEvent::~StreamEvent() {
  for (CUevent event : events_) pool_.give_back(event);
}

Status StreamEvent::wait() {
  const Context& context = pool_.context();
  const Scope scope(context);
  SW_TRY(scope.status());
  for (CUevent event : events_) {
    SW_TRY(context.check(context.driver().cuEventSynchronize(event), "cuEventSynchronize"));
  }
  return {};
}

Status StreamEvent::stream_wait(const Context& context, CUstream stream) const {
  for (CUevent event : events_) {
    SW_TRY(context.check(context.driver().cuStreamWaitEvent(stream, event, 0), "cuStreamWaitEvent"));
  }
  return {};
}

Status wait_for_stream(EventPool& pool, CUstream stream) {
  const auto point = StreamEvent::record(pool, {&stream, 1});
  Status waited = point.has_value() ? (*point)->wait() : Status();
  if (point.has_value() && waited.has_value()) return {};
  // This may spin, but it happens only after a failed call.
  const Context& context = pool.context();
  Status synchronized = context.check(context.driver().cuStreamSynchronize(stream), "cuStreamSynchronize");
  return waited.has_value() ? synchronized : waited;
}

PooledMemory& PooledMemory::operator=(PooledMemory&& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(memory_, other.memory_);
  return *this;
}

PooledMemory::~PooledMemory() {
  if (pool_ != nullptr) pool_->give_back(memory_);
}

void PooledMemory::retire() {
  if (pool_ == nullptr) return;
  const std::lock_guard lock(pool_->mutex_);
  pool_->retired_.push_back(memory_);
  pool_ = nullptr;
}

MemoryPool::~MemoryPool() {
  const Scope scope(context_);
  for (const std::span<std::byte> memory : free_) release(memory);
  for (const std::span<std::byte> memory : retired_) release(memory);
}

Result<PooledMemory> MemoryPool::take(std::uint64_t size_bytes) {
  std::span<std::byte> outgrown;
  {
    const std::lock_guard lock(mutex_);
    const auto fitting = [&](std::span<std::byte> memory) {
      return memory.size() >= size_bytes ? memory.size() : std::numeric_limits<std::size_t>::max();
    };
    const auto best = std::ranges::min_element(free_, {}, fitting);
    if (best != free_.end()) {
      const std::span<std::byte> memory = *best;
      free_.erase(best);
      if (memory.size() >= size_bytes) return PooledMemory(this, memory);
      outgrown = memory;
    }
  }
  if (!outgrown.empty()) release(outgrown);
  SW_ASSIGN(const std::span<std::byte> memory, allocate(size_bytes));
  return PooledMemory(this, memory);
}

Result<std::span<std::byte>> MemoryPool::allocate(std::uint64_t size_bytes) {
  size_bytes = round_up(std::max<std::uint64_t>(size_bytes, 1), kMemoryUnitBytes);
  void* memory = nullptr;
  SW_TRY(
      context_.check(context_.driver().cuMemHostAlloc(&memory, size_bytes, kMemHostAllocPortable), "cuMemHostAlloc"));
  return std::span(static_cast<std::byte*>(memory), size_bytes);
}

void MemoryPool::release(std::span<std::byte> memory) { (void)context_.driver().cuMemFreeHost(memory.data()); }

void MemoryPool::give_back(std::span<std::byte> memory) {
  const std::lock_guard lock(mutex_);
  free_.push_back(memory);
}

}  // namespace slackwater::cuda
