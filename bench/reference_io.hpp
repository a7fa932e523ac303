// RawIo: what the disk itself can do, as the yardstick. io_uring, O_DIRECT, registered buffers, the steps of the
// durability order for one file (O_EXCL, fallocate mode 0, writes, ftruncate, fdatasync), and nothing else: no copy, no
// checksum, no record, no commit. Written apart from the engine on purpose: a mistake in the engine's queue must not
// lower the bar it is held to. `slackwater doctor` has a yardstick that works without io_uring: cli/doctor/raw_io.hpp.
// Thread rule: one thread. Lifetime: the image outlives it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "slackwater/error.hpp"

namespace slackwater::bench {

struct RawOptions {
  unsigned depth = 16;
  std::uint64_t request_bytes = 8ull << 20;
};

class RawIo {
 public:
  // `image`: the bytes of the file, page aligned, a multiple of 4096 long, touched. Sets up the ring and registers the
  // image; neither is timed.
  [[nodiscard]] static Result<RawIo> create(std::span<std::byte> image, const RawOptions& options);
  RawIo(RawIo&&) noexcept;
  RawIo& operator=(RawIo&&) noexcept;
  ~RawIo();

  // Seconds from before the create to after the close. `size_bytes` is the exact size of the file.
  [[nodiscard]] Result<double> write_file(const std::string& path, std::uint64_t size_bytes);
  // Seconds from before the open to after the close; the image holds the file then.
  [[nodiscard]] Result<double> read_file(const std::string& path, std::uint64_t size_bytes);

  [[nodiscard]] bool registered() const;  // false: the memlock limit forbade it, plain writes and reads are used

 private:
  class Impl;
  explicit RawIo(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace slackwater::bench
