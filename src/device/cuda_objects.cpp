#include "device/cuda_objects.hpp"

#include <algorithm>
#include <limits>

#include "base/result.hpp"

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

Result<CUevent> EventPool::take() {
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      CUevent event = free_.back();
      free_.pop_back();
      return event;
    }
  }
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

Status StreamEvent::hold(const Context& context, CUstream stream) const {
  for (CUevent event : events_) {
    SW_TRY(context.check(context.driver().cuStreamWaitEvent(stream, event, 0), "cuStreamWaitEvent"));
  }
  return {};
}

Status settle(EventPool& pool, CUstream stream) {
  const auto point = StreamEvent::record(pool, {&stream, 1});
  Status waited = point.has_value() ? (*point)->wait() : Status();
  if (point.has_value() && waited.has_value()) return {};
  // This one may spin; only a call that failed leads here.
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

MemoryPool::~MemoryPool() {
  const Scope scope(context_);
  for (const std::span<std::byte> memory : free_) release(memory);
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
  const Driver& driver = context_.driver();
  size_bytes = std::max<std::uint64_t>(1, (size_bytes + kMemoryUnitBytes - 1) / kMemoryUnitBytes) * kMemoryUnitBytes;
  switch (kind_) {
    case MemoryKind::kPinnedHost: {
      void* memory = nullptr;
      SW_TRY(context_.check(driver.cuMemHostAlloc(&memory, size_bytes, kMemHostAllocPortable), "cuMemHostAlloc"));
      return std::span(static_cast<std::byte*>(memory), size_bytes);
    }
    case MemoryKind::kDevice: {
      CUdeviceptr memory = 0;
      SW_TRY(context_.check(driver.cuMemAlloc_v2(&memory, size_bytes), "cuMemAlloc_v2"));
      // NOLINTNEXTLINE(performance-no-int-to-ptr): the driver has device addresses as numbers
      return std::span(reinterpret_cast<std::byte*>(memory), size_bytes);
    }
  }
  return fail(ErrorKind::kInternal, "memory of an unknown kind was asked for");
}

void MemoryPool::release(std::span<std::byte> memory) {
  switch (kind_) {
    case MemoryKind::kPinnedHost: (void)context_.driver().cuMemFreeHost(memory.data()); return;
    case MemoryKind::kDevice: (void)context_.driver().cuMemFree_v2(as_device(memory.data())); return;
  }
}

void MemoryPool::give_back(std::span<std::byte> memory) {
  const std::lock_guard lock(mutex_);
  free_.push_back(memory);
}

}  // namespace slackwater::cuda
