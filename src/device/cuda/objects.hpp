// Objects that live in a context: streams, events in them, and pools of events and memory. There are pools because
// creating either takes microseconds to milliseconds and may wait for the device.
// Owner: CudaDevice. Thread rule: a Stream is constant once open, a StreamEvent after record(). Pools are thread-safe.
// Callers are inside a Scope of the context, unless a comment says that they need none.
// Lifetime: the Context outlives everything here, and a pool outlives what was taken from it. No destructor waits, and
// none fails on a lost device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "device/async_device.hpp"
#include "device/cuda/context.hpp"

namespace slackwater::cuda {

[[nodiscard]] inline CUstream as_stream(StreamHandle handle) {
  return reinterpret_cast<CUstream>(handle);  // NOLINT(performance-no-int-to-ptr): the trainer passes a number
}
[[nodiscard]] inline CUdeviceptr as_device(const std::byte* address) {
  return reinterpret_cast<std::uintptr_t>(address);
}

// A stream of our own, with the lowest priority and without implicit order with the default stream.
class Stream {
 public:
  explicit Stream(const Context& context) : context_(context) {}
  ~Stream();  // needs no Scope
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  [[nodiscard]] Status open();  // call once, before anything else
  [[nodiscard]] CUstream get() const { return stream_; }

 private:
  const Context& context_;
  CUstream stream_ = nullptr;
};

class EventPool {
 public:
  explicit EventPool(const Context& context) : context_(context) {}
  ~EventPool();  // needs no Scope

  [[nodiscard]] Status fill(std::size_t count);  // makes events ahead of their use
  [[nodiscard]] Result<CUevent> take();
  void give_back(CUevent event);  // needs no Scope; the event may still be pending
  [[nodiscard]] const Context& context() const { return context_; }

 private:
  [[nodiscard]] Result<CUevent> make() const;

  const Context& context_;
  std::mutex mutex_;
  std::vector<CUevent> free_;  // guarded by mutex_
};

// A point in one or more streams. Waiting for it sleeps and does not spin.
class StreamEvent final : public Event {
 public:
  [[nodiscard]] static Result<std::shared_ptr<StreamEvent>> record(EventPool& pool, std::span<const CUstream> streams);
  explicit StreamEvent(EventPool& pool) : pool_(pool) {}
  ~StreamEvent() override;  // needs no Scope
  StreamEvent(const StreamEvent&) = delete;
  StreamEvent& operator=(const StreamEvent&) = delete;

  [[nodiscard]] Status wait() override;  // needs no Scope
  // Later work on `stream`, of any device, runs after this point.
  [[nodiscard]] Status stream_wait(const Context& context, CUstream stream) const;

 private:
  EventPool& pool_;
  std::vector<CUevent> events_;  // constant after record()
};

// Waits until everything queued on `stream` so far is done. For error paths, on which a buffer must not be released
// while the device may still write into it. If no event can be had, it synchronises the whole stream.
[[nodiscard]] Status wait_for_stream(EventPool& pool, CUstream stream);

class MemoryPool;

// Pinned host memory borrowed from a pool. Move-only. The destructor returns it and needs no Scope.
class PooledMemory {
 public:
  PooledMemory() = default;
  PooledMemory(MemoryPool* pool, std::span<std::byte> memory) : pool_(pool), memory_(memory) {}
  PooledMemory(PooledMemory&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)), memory_(std::exchange(other.memory_, {})) {}
  PooledMemory& operator=(PooledMemory&& other) noexcept;
  ~PooledMemory();

  [[nodiscard]] std::byte* data() const { return memory_.data(); }
  // Never lends it again, because a device may still write into it. The pool frees it at its end.
  void retire();

 private:
  MemoryPool* pool_ = nullptr;
  std::span<std::byte> memory_;
};

// Pinned host memory. Keeps what is returned for the next user. It never has more pieces than were borrowed at the same
// time.
class MemoryPool {
 public:
  explicit MemoryPool(const Context& context) : context_(context) {}
  ~MemoryPool();  // needs no Scope

  [[nodiscard]] Result<PooledMemory> take(std::uint64_t size_bytes);

 private:
  friend class PooledMemory;
  [[nodiscard]] Result<std::span<std::byte>> allocate(std::uint64_t size_bytes);
  void release(std::span<std::byte> memory);
  void give_back(std::span<std::byte> memory);

  const Context& context_;
  std::mutex mutex_;
  std::vector<std::span<std::byte>> free_;     // guarded by mutex_
  std::vector<std::span<std::byte>> retired_;  // guarded by mutex_
};

}  // namespace slackwater::cuda
