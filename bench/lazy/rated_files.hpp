// A FileSystem whose writes all share one bandwidth: what a benchmark calls "the flush bandwidth of the paper". Writes
// are real and as fast as the disk; only their completion is held back until the bandwidth would have carried them.
// Thread rule and lifetime: file_system.hpp.
#pragma once

#include <memory>

#include "os/file_system.hpp"

namespace slackwater::bench {

// 0: no limit, and `inner` itself.
[[nodiscard]] std::unique_ptr<FileSystem> rated_file_system(std::unique_ptr<FileSystem> inner,
                                                            double write_bytes_per_s);

}  // namespace slackwater::bench
