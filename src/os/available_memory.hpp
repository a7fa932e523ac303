// How much memory is available to this process, for sizing the pool. Reads /proc and the cgroup; any thread.
#pragma once

#include <cstdint>

namespace slackwater {

// The smaller of the machine's available memory and what the cgroup still allows; 0 if neither can be read.
[[nodiscard]] std::uint64_t available_memory_bytes();

}  // namespace slackwater
