// The memory a reader works in: the pool it was given, or a small one of its own.
#pragma once

#include <cstdint>
#include <memory>

#include "restore/block_reader.hpp"
#include "slackwater/checkpoint.hpp"
#include "slackwater/error.hpp"
#include "stage/pool.hpp"

namespace slackwater {

// A pool of about options.buffer_bytes, or less where that is more than the `size_bytes` there are to read.
[[nodiscard]] Result<std::unique_ptr<Pool>> make_read_pool(const ReadOptions& options, std::uint64_t size_bytes);
[[nodiscard]] BlockReader::Options block_reader_options(const ReadOptions& options);

}  // namespace slackwater
