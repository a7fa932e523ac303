// What lives in a context: streams, points in them, and pools of events and memory, because creating either costs microseconds to
// milliseconds and may wait for the device.
// Thread rule: Stream is constant once open; pools are thread-safe; StreamEvent is constant after record().
// Lifetime: Context outlives all of it, a pool what was taken from it. No destructor waits, none fails on a lost device.
// Callers are inside a Scope of the context, unless it says otherwise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "device/async_device.hpp"
#include "device/cuda_context.hpp"

namespace slackwater::cuda {

[[nodiscard]] inline CUstream as_stream(StreamHandle handle) {
  return reinterpret_cast<CUstream>(handle);  // NOLINT(performance-no-int-to-ptr): the trainer has it as a number
}
[[nodiscard]] inline CUdeviceptr as_device(const std::byte* address) {
  return reinterpret_cast<std::uintptr_t>(address);
}

// A stream of our own: of the lowest priority, and in no implicit order with the default stream.
class Stream {
 public:
  explicit Stream(const Context& context) : context_(context) {}
  ~Stream();  // needs no Scope
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  [[nodiscard]] Status open();  // once, before anything else
  [[nodiscard]] CUstream get() const { return stream_; }

 private:
  const Context& context_;
  CUstream stream_ = nullptr;
};

class EventPool {
 public:
  explicit EventPool(const Context& context) : context_(context) {}
  ~EventPool();  // needs no Scope

  [[nodiscard]] Result<CUevent> take();
  void give_back(CUevent event);  // needs no Scope; the event may still be pending
  [[nodiscard]] const Context& context() const { return context_; }

 private:
  const Context& context_;
  std::mutex mutex_;
  std::vector<CUevent> free_;  // guarded by mutex_
};

// A point in one or more streams. Its waits sleep: the events are made for it.
class StreamEvent final : public Event {
 public:
  [[nodiscard]] static Result<std::shared_ptr<StreamEvent>> record(EventPool& pool, std::span<const CUstream> streams);
  explicit StreamEvent(EventPool& pool) : pool_(pool) {}
  ~StreamEvent() override;  // needs no Scope
  StreamEvent(const StreamEvent&) = delete;
  StreamEvent& operator=(const StreamEvent&) = delete;

  [[nodiscard]] Status wait() override;  // needs no Scope
  [[nodiscard]] Status hold(const Context& context,
                            CUstream stream) const;  // orders later work on `stream`, of any device, behind it

 private:
  EventPool& pool_;
  std::vector<CUevent> events_;  // constant after record()
};

// Waits until `stream` has done all that is queued on it so far. For the ways out on which a buffer must not be let go while
// the device may still write into it; tries harder than an event when there is none to be had.
[[nodiscard]] Status settle(EventPool& pool, CUstream stream);

enum class MemoryKind : std::uint8_t { kPinnedHost, kDevice };

class MemoryPool;

// Memory on loan. Move-only; returns itself (needs no Scope).
class PooledMemory {
 public:
  PooledMemory() = default;
  PooledMemory(MemoryPool* pool, std::span<std::byte> memory) : pool_(pool), memory_(memory) {}
  PooledMemory(PooledMemory&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)), memory_(std::exchange(other.memory_, {})) {}
  PooledMemory& operator=(PooledMemory&& other) noexcept;
  ~PooledMemory();

  [[nodiscard]] std::byte* data() const { return memory_.data(); }

 private:
  MemoryPool* pool_ = nullptr;
  std::span<std::byte> memory_;
};

// Keeps what comes back for the next one: as many pieces as were ever on loan at the same time.
class MemoryPool {
 public:
  MemoryPool(const Context& context, MemoryKind kind) : context_(context), kind_(kind) {}
  ~MemoryPool();  // needs no Scope

  [[nodiscard]] Result<PooledMemory> take(std::uint64_t size_bytes);

 private:
  friend class PooledMemory;
  [[nodiscard]] Result<std::span<std::byte>> allocate(std::uint64_t size_bytes);
  void release(std::span<std::byte> memory);
  void give_back(std::span<std::byte> memory);

  const Context& context_;
  const MemoryKind kind_;
  std::mutex mutex_;
  std::vector<std::span<std::byte>> free_;  // guarded by mutex_
};

}  // namespace slackwater::cuda
