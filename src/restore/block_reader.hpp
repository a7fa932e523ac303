// BlockReader: reads blocks of files with O_DIRECT in parallel, verifies each block, and hands verified bytes to a callback.
// Used by Checkpoint::read (place) and by the verifier (only look).
//
//   calling thread: submits reads into free windows ──> disk ──> placing threads "sw-place-N": digest, callback ──> window free again
//
// A window is a part of a slab, large enough to keep the disk busy and small enough that the callback finds the bytes in the
// cache. The slabs are leased while run() lasts, so that each is registered with the queue once; one slab is enough to get through.
// Thread rule: one run() at a time. Lifetime: FileSystem and Pool outlive it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "base/log.hpp"
#include "os/file_system.hpp"
#include "slackwater/error.hpp"
#include "stage/pool.hpp"

namespace slackwater {

// A byte range of one file, block aligned at its start, read and verified as a unit of at most BlockReader::unit_bytes().
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
  std::uint64_t size_bytes = 0;  // of the whole file, with offset 0, when it cannot be opened
  Error error;                   // kCorrupt: not the bytes that were promised; else why they cannot be read
};

class BlockReader {
 public:
  struct Options {
    unsigned queue_depth = 0;        // 0: one read a window
    unsigned place_threads = 0;      // 0: auto
    std::uint64_t buffer_bytes = 0;  // of the pool to be used at most; 0: auto
    bool force_threads = false;
    bool direct = true;
  };
  // Both return whether to go on: false, or an Error, ends the run.
  using OnVerified = std::function<Status(const ReadUnit&, std::span<const std::byte>)>;
  using OnBad = std::function<bool(const BadBlock&)>;
  using OnProgress = std::function<void(std::uint64_t bytes_done)>;

  BlockReader(FileSystem& fs, Pool& pool, Options options, Log log);

  // Longest unit that run() takes.
  [[nodiscard]] std::uint64_t unit_bytes() const;

  // on_verified: from placing threads, several at once, for each unit whose every block verified.
  // on_bad: one call at a time, from any of the threads; true goes on with the rest (verify), false ends the run (restore).
  // on_progress: from the calling thread.
  // Status: the error of the bad block that ended the run, an error of on_verified, or why there is no memory or queue.
  [[nodiscard]] Status run(std::span<const ReadFile> files, std::span<const ReadUnit> units,
                           const OnVerified& on_verified, const OnBad& on_bad, const OnProgress& on_progress = {});

 private:
  FileSystem& fs_;
  Pool& pool_;
  const Options options_;
  const Log log_;
};

}  // namespace slackwater
