// IoQueue: many reads and writes under way at once. Made by a FileSystem, so that faults can be injected under it.
// Thread rule: everything belongs to one thread, except wake(). Requests keep pointers: File and memory must live until
// their completion was returned. The destructor waits for what is in flight.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "os/clock.hpp"
#include "os/file.hpp"

namespace slackwater {

enum class IoOp : std::uint8_t { kRead, kWrite };

struct IoRequest {
  IoOp op = IoOp::kWrite;
  File* file = nullptr;
  std::byte* data = nullptr;
  std::uint64_t size_bytes = 0;
  std::uint64_t offset = 0;
  int buffer = -1;        // index given to register_buffer(), or -1
  std::uint64_t tag = 0;  // handed back in the completion
};

// Of the whole request: short transfers, EINTR and EAGAIN are continued inside. A read that meets the end of the file
// completes with fewer bytes.
struct IoCompletion {
  std::uint64_t tag = 0;
  Result<std::uint64_t> size_bytes;
};

struct IoQueueOptions {
  unsigned depth = 32;
  unsigned buffer_slots = 0;  // how many buffers may be registered
  bool force_threads = false;
};

// What every queue answers in a forked child.
[[nodiscard]] inline std::unexpected<Error> queue_of_parent() {
  return fail(ErrorKind::kClosed, "this I/O queue belongs to the parent process");
}

class IoQueue {
 public:
  virtual ~IoQueue() = default;

  // "io_uring" or "threads".
  [[nodiscard]] virtual std::string_view backend() const = 0;
  // Why it is not io_uring where that was asked for; empty otherwise.
  [[nodiscard]] virtual std::string fallback_reason() const { return {}; }
  [[nodiscard]] virtual unsigned depth() const = 0;
  [[nodiscard]] virtual unsigned in_flight() const = 0;

  // Pins one buffer under an index below buffer_slots. kNoSpace/kPermission/kUnsupported where the memlock limit or the backend
  // forbids it: the buffer then works unregistered (use -1).
  [[nodiscard]] virtual Status register_buffer(int index, std::span<std::byte> memory) = 0;

  // Only while in_flight() < depth(). Errors of the transfer come as completion; an Error here means it was not queued.
  [[nodiscard]] virtual Status submit(const IoRequest& request) = 0;

  // Appends completions. Returns when there is at least one, wake() was called (also if before), or time is up (nullopt: no limit).
  [[nodiscard]] virtual Status wait(std::vector<IoCompletion>& completions, std::optional<Duration> timeout) = 0;

  // Gives back what the queue keeps of a file (its place in the kernel's table of registered files). Call it before the file
  // is closed, with nothing of it in flight. Without it nothing goes wrong, but the kernel keeps the file open, and the space of
  // an unlinked one, until the queue needs the place again or ends.
  virtual void forget(File& /*file*/) {}

  // From any thread: makes the current or the next wait() return.
  virtual void wake() = 0;
};

}  // namespace slackwater
