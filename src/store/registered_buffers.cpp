#include "store/registered_buffers.hpp"

#include <cerrno>

#include <fmt/format.h>

namespace slackwater {

bool RegisteredBuffers::add(IoQueue& queue, int index, std::span<std::byte> memory, const Log& log) {
  // After one refusal the next slabs would fare no better, and each attempt costs a system call.
  if (refused_) return false;
  const auto slot = static_cast<std::size_t>(index);
  const Status status = slot < registered_.size()
                            ? queue.register_buffer(index, memory)
                            : fail(ErrorKind::kInternal, fmt::format("there is no buffer slot {}", index));
  if (status) {
    registered_[slot] = true;
    return true;
  }
  refused_ = true;
  // A backend without registered buffers was reported when it was chosen.
  if (status.error().kind == ErrorKind::kUnsupported) return false;
  if (status.error().sys_errno == ENOMEM) {
    log.warn("writes are a little slower than they could be: the limit on locked memory is low (ulimit -l)");
  } else {
    log.warn("writes are a little slower than they could be: {}", status.error().to_string());
  }
  return false;
}

}  // namespace slackwater
