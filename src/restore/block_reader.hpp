// BlockReader: reads blocks of files with O_DIRECT in parallel into slabs, verifies each block, and hands verified bytes to placing threads.
// Used by Checkpoint::read (place) and Checkpoint::verify (only look). Thread rule: one run() at a time.
// Lifetime: FileSystem and Pool outlive it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "os/file_system.hpp"
#include "slackwater/error.hpp"
#include "stage/pool.hpp"

namespace slackwater {

// A byte range of one file, block aligned at its start, read and verified as a unit of at most one slab.
struct ReadUnit {
  std::uint32_t file = 0;        // index into the files given to run()
  std::uint64_t offset = 0;      // a multiple of kBlockBytes
  std::uint64_t size_bytes = 0;  // whole blocks, but for the end of the file
};

struct ReadFile {
  std::string path;
  std::uint64_t size_bytes = 0;
  std::span<const std::uint64_t> block_digests;
};

struct BadBlock {
  std::uint32_t file = 0;
  std::uint64_t offset = 0;
  std::uint64_t size_bytes = 0;
  Error error;
};

class BlockReader {
 public:
  struct Options {
    unsigned queue_depth = 0;  // 0: auto
    unsigned place_threads = 0;  // 0: auto
    bool force_threads = false;
    bool direct = true;
  };
  BlockReader(FileSystem& fs, Pool& pool, Options options, Log log);

  // on_verified: from placing threads, several at once, for each unit whose every block verified.
  // on_bad: from placing threads, one at a time; true goes on with the rest (verify), false ends the run with that error (restore).
  // Status: kIo when a file cannot be read at all, or the error of the bad block that ended it.
  [[nodiscard]] Status run(std::span<const ReadFile> files, std::span<const ReadUnit> units,
                           const std::function<Status(const ReadUnit&, std::span<const std::byte>)>& on_verified,
                           const std::function<bool(const BadBlock&)>& on_bad,
                           const std::function<void(std::uint64_t bytes_done)>& on_progress);

 private:
  FileSystem& fs_;
  Pool& pool_;
  Options options_;
  Log log_;
};

}  // namespace slackwater
