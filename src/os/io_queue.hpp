// IoQueue: many reads and writes in flight at once. A FileSystem makes it, so that tests can inject faults.
// Owner: whoever asked for it. Thread rule: one thread uses it; only wake() may be called from any thread.
// Lifetime: File and memory of a request must live until wait() has returned its completion. The destructor waits for
// everything in flight.
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
  int buffer = -1;        // index from register_buffer(), or -1
  std::uint64_t tag = 0;  // returned in the completion
};

// The result of a whole request. The queue itself handles short transfers, EINTR and EAGAIN. A read that reaches the
// end of the file completes with fewer bytes.
struct IoCompletion {
  std::uint64_t tag = 0;
  Result<std::uint64_t> size_bytes;
};

struct IoQueueOptions {
  unsigned depth = 32;
  unsigned buffer_slots = 0;  // how many buffers may be registered
  bool force_threads = false;
};

// What every queue returns in a forked child.
[[nodiscard]] inline std::unexpected<Error> closed_by_fork() {
  return fail(ErrorKind::kClosed, "this I/O queue belongs to the parent process");
}

class IoQueue {
 public:
  virtual ~IoQueue() = default;

  // "io_uring" or "threads".
  [[nodiscard]] virtual std::string_view backend() const = 0;
  // Why the queue does not use io_uring although that was asked for; else empty.
  [[nodiscard]] virtual std::string fallback_reason() const { return {}; }
  [[nodiscard]] virtual unsigned depth() const = 0;
  [[nodiscard]] virtual unsigned in_flight() const = 0;

  // Pins one buffer under an index below buffer_slots. kNoSpace, kPermission or kUnsupported if the memlock limit or
  // the backend forbids it. The buffer can then be used unregistered, with index -1.
  [[nodiscard]] virtual Status register_buffer(int index, std::span<std::byte> memory) = 0;

  // Only while in_flight() < depth(). An Error here means that nothing was queued. A transfer that fails later says so
  // in its completion.
  [[nodiscard]] virtual Status submit(const IoRequest& request) = 0;

  // Appends completions. Returns when there is at least one, when wake() is or was called, or after the timeout
  // (nullopt: none).
  [[nodiscard]] virtual Status wait(std::vector<IoCompletion>& completions, std::optional<Duration> timeout) = 0;

  // Drops the file from the kernel's table of registered files. Call it before the file is closed, with none of its
  // requests in flight. Otherwise the kernel keeps the file open, and the space of an unlinked file occupied, until the
  // queue reuses the slot or ends.
  virtual void forget(File& /*file*/) {}

  // Makes the current or the next wait() return. From any thread.
  virtual void wake() = 0;
};

}  // namespace slackwater
