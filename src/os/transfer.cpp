#include "os/transfer.hpp"

#include <algorithm>
#include <cerrno>

#include "base/error.hpp"
#include "base/units.hpp"

namespace slackwater {
namespace {

constexpr std::uint64_t kMaxPieceBytes = 1u << 30;  // aligned, and below the kernel's limit per call
constexpr unsigned kMaxEmptyAnswers = 100;

}  // namespace

std::uint64_t Transfer::piece_bytes() const { return std::min(size_bytes_ - start_, kMaxPieceBytes); }

bool Transfer::advance(std::int64_t answer) {
  if (answer < 0) {
    const int sys_errno = static_cast<int>(-answer);
    const bool again = sys_errno == EINTR || sys_errno == EAGAIN;
    if (again && ++empty_answers_ < kMaxEmptyAnswers) return false;
    sys_errno_ = sys_errno;
    return true;
  }

  const std::uint64_t reached = start_ + static_cast<std::uint64_t>(answer);
  if (reached >= size_bytes_) {
    done_bytes_ = size_bytes_;
    return true;
  }
  if (reached > done_bytes_) {
    done_bytes_ = reached;
    empty_answers_ = 0;
  } else if (op_ == IoOp::kRead) {
    return true;  // the end of the file
  } else if (++empty_answers_ >= kMaxEmptyAnswers) {
    sys_errno_ = EIO;
    return true;
  }
  // O_DIRECT needs an aligned start, so the part of the last block that did move is moved again.
  start_ = direct_ ? round_down(done_bytes_, kDirectAlignment) : done_bytes_;
  return false;
}

Result<std::uint64_t> Transfer::result(const std::string& path) const {
  if (sys_errno_ == 0) return done_bytes_;
  return fail(
      error_from_errno(sys_errno_, op_ == IoOp::kRead ? "cannot read the file" : "cannot write the file", path));
}

}  // namespace slackwater
