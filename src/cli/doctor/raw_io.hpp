// What the disk itself can do, as the yardstick for our writer and reader: O_DIRECT pread and pwrite of as many bytes
// from several threads, and the steps of the durability order for one file. As many bytes are in flight as the engine
// has. No copy, no checksum, no commit. It shares nothing with the engine's queues on purpose, and it works where
// io_uring is forbidden. The benchmarks need a stricter yardstick, with io_uring and registered buffers:
// bench/reference_io.hpp.
// Thread rule: any thread; starts threads of its own and joins them.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "slackwater/error.hpp"

namespace slackwater::cli::doctor {

// `buffer` is page aligned, and at least one request long. All of it is used, as the engine uses all of its pool. For a
// fair comparison it is memory of the same kind.
inline constexpr std::size_t kRawRequestBytes = 8u << 20;

// Seconds from before the create to after the close: create exclusively, fallocate, write, fdatasync.
[[nodiscard]] Result<double> write_raw(const std::string& path, std::size_t size_bytes, std::span<std::byte> buffer);
// Seconds from before the open to after the close. The file must have at least as many bytes.
[[nodiscard]] Result<double> read_raw(const std::string& path, std::size_t size_bytes, std::span<std::byte> buffer);

}  // namespace slackwater::cli::doctor
