// What the disk itself can do, as the yardstick for our writer and reader: O_DIRECT pread and pwrite of the same bytes
// from several threads, and the steps of the durability order for one file. No copy, no checksum, no commit. It shares
// nothing with the engine's queues on purpose, and it works where io_uring is forbidden.
// Thread rule: any thread; starts threads of its own and joins them.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "slackwater/error.hpp"

namespace slackwater::cli::doctor {

// Seconds from before the create to after the close: create exclusively, fallocate, write, fdatasync.
// `bytes` is page aligned, and a multiple of 4096 long.
[[nodiscard]] Result<double> write_raw(const std::string& path, std::span<const std::byte> bytes);
// Seconds from before the open to after the close. The file must have at least as many bytes.
[[nodiscard]] Result<double> read_raw(const std::string& path, std::span<std::byte> bytes);

}  // namespace slackwater::cli::doctor
