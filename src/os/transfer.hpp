// Transfer: decides how one read or write continues after each answer from the kernel. It does no I/O itself. It names
// the next piece and judges the result. pread, pwrite and io_uring all use it, so that short transfers, EINTR and
// EAGAIN are handled in one place.
// Owner and thread rule: those of the request it drives.
#pragma once

#include <cstdint>
#include <string>

#include "os/io_queue.hpp"
#include "slackwater/error.hpp"

namespace slackwater {

class Transfer {
 public:
  Transfer() = default;
  Transfer(IoOp op, std::uint64_t size_bytes, bool direct) : op_(op), size_bytes_(size_bytes), direct_(direct) {}

  // The next piece to ask the kernel for, relative to the start of the request.
  [[nodiscard]] std::uint64_t piece_start() const { return start_; }
  [[nodiscard]] std::uint64_t piece_bytes() const;

  // Takes the kernel's answer: bytes moved, or a negative errno. True if the request is finished; then call result().
  [[nodiscard]] bool advance(std::int64_t answer);

  // Bytes moved, after advance() has returned true. Fewer than asked for only if a read reached the end of the file.
  [[nodiscard]] Result<std::uint64_t> result(const std::string& path) const;

 private:
  IoOp op_ = IoOp::kRead;
  std::uint64_t size_bytes_ = 0;
  bool direct_ = false;
  std::uint64_t start_ = 0;  // of the current piece
  std::uint64_t done_bytes_ = 0;
  unsigned empty_answers_ = 0;  // answers in a row that moved nothing
  int sys_errno_ = 0;           // if the finished request failed
};

}  // namespace slackwater
