// Transfer: how one read or write goes on after each answer of the kernel. Pure: it names the next piece and judges the
// result; pread, pwrite and io_uring all follow it, so that short transfers, EINTR and EAGAIN are handled in one place.
// Thread rule: belongs to the request it drives.
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

  // The piece to ask the kernel for, relative to the start of the request.
  [[nodiscard]] std::uint64_t piece_start() const { return start_; }
  [[nodiscard]] std::uint64_t piece_bytes() const;

  // Takes the kernel's answer: bytes moved, or a negative errno. True: the request is finished, ask result().
  [[nodiscard]] bool advance(std::int64_t answer);

  // After advance() said so. Bytes moved; fewer than asked for only where a read met the end of the file.
  [[nodiscard]] Result<std::uint64_t> result(const std::string& path) const;

 private:
  IoOp op_ = IoOp::kRead;
  std::uint64_t size_bytes_ = 0;
  bool direct_ = false;
  std::uint64_t start_ = 0;  // of the piece asked for
  std::uint64_t done_bytes_ = 0;
  unsigned fruitless_ = 0;  // answers in a row that moved nothing
  int sys_errno_ = 0;       // of a finished request that failed
};

}  // namespace slackwater
