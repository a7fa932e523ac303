// A memcpy for bytes that this core will not use again soon. Large copies bypass the caches (non-temporal stores). That
// avoids reading the destination first and leaves the trainer's cache alone. Measured 1.7 times as fast as glibc's
// memcpy for slabs of 8 MiB. Any thread; the ranges must not overlap. On return, another thread that synchronises
// through a lock sees the bytes.
#pragma once

#include <cstddef>

namespace slackwater {

void streaming_copy(std::byte* to, const std::byte* from, std::size_t size_bytes);

}  // namespace slackwater
