// SharedMemory: memory that two processes map, and that outlives either of them (a memfd). It is sealed against
// resizing: nobody can shrink it under a process that reads it, which would end that process with SIGBUS.
// Owner: whoever maps it, often several parts of one process. Thread rule: constant after map().
// Lifetime: the mapping lasts until the last owner is gone. It stays out of forked children (MADV_DONTFORK).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/unique_fd.hpp"
#include "slackwater/error.hpp"

namespace slackwater {

// New memory, all zero. No page exists before somebody writes to it.
[[nodiscard]] Result<UniqueFd> make_shared_memory(const char* name, std::uint64_t size_bytes);
// A second descriptor for the same memory, for somebody who may only read it.
[[nodiscard]] Result<UniqueFd> reopen_read_only(const UniqueFd& memory);

class SharedMemory {
 public:
  enum class Access : std::uint8_t { kRead, kWrite };

  // Maps all of it, at a huge-page boundary. kCorrupt unless it is sealed memory. The descriptor may be closed then.
  [[nodiscard]] static Result<std::shared_ptr<SharedMemory>> map(const UniqueFd& descriptor, Access access);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  [[nodiscard]] std::span<std::byte> bytes() const { return bytes_; }

 private:
  explicit SharedMemory(std::span<std::byte> bytes) : bytes_(bytes) {}
  const std::span<std::byte> bytes_;
};

}  // namespace slackwater
