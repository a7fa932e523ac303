// BlockReader: reads blocks of files in parallel with O_DIRECT, verifies each one, and hands verified bytes to a
// callback. Checkpoint::read() places them; the verifier only wants to know which blocks are bad.
//
//   calling thread: submits reads into free read buffers -> disk
//   "sw-place-N" threads: check the digest, call back, free the buffer
//
// A read buffer is a part of a slab. It is large enough to keep the disk busy, and small enough that the callback finds
// the bytes in the cache. The slabs are leased as long as run() lasts, so that each is registered with the queue once.
// One slab is enough to get through. Files whose bytes are in memory (File::in_place) need no buffer and no read.
// Thread rule: one run() at a time. Lifetime: FileSystem and Pool outlive it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/log.hpp"
#include "os/file_system.hpp"
#include "slackwater/checkpoint.hpp"
#include "slackwater/error.hpp"
#include "stage/pool.hpp"

namespace slackwater {

// A byte range of one file that is read and verified as a unit of at most BlockReader::unit_bytes().
struct ReadUnit {
  std::uint32_t file = 0;        // index into the files given to run()
  std::uint64_t offset = 0;      // a multiple of kBlockBytes
  std::uint64_t size_bytes = 0;  // whole blocks, except at the end of the file
};

struct ReadFile {
  std::string path;
  std::uint64_t size_bytes = 0;
  std::span<const std::uint64_t> block_digests;
};

struct BadBlock {
  std::uint32_t file = 0;
  std::uint64_t offset = 0;
  std::uint64_t size_bytes = 0;  // if the file cannot be opened: all of it, from offset 0
  Error error;                   // kCorrupt: not the bytes that were written; else why they cannot be read
};

class BlockReader {
 public:
  struct Options {
    unsigned queue_depth = 0;        // 0: one read per read buffer
    unsigned place_threads = 0;      // 0: auto
    std::uint64_t buffer_bytes = 0;  // of the pool, to be used at most; 0: auto
    bool force_threads = false;
    bool direct = true;
  };
  // An Error from on_verified, or false from on_bad, ends the run.
  using OnVerified = std::function<Status(const ReadUnit&, std::span<const std::byte>)>;
  using OnBad = std::function<bool(const BadBlock&)>;
  using OnProgress = std::function<void(std::uint64_t bytes_done)>;

  BlockReader(FileSystem& fs, Pool& pool, Options options, Log log);

  // The longest unit that run() takes.
  [[nodiscard]] std::uint64_t unit_bytes() const;

  // on_verified: from placing threads, several at once, for each unit whose blocks are all good. Of a file in memory:
  // for each good block.
  // on_bad: one call at a time, from any thread. True goes on with the rest (verify), false ends the run (restore).
  // on_progress: from the calling thread.
  // Returns the error of the bad block that ended the run, an error of on_verified, or why there is no memory or queue.
  [[nodiscard]] Status run(std::span<const ReadFile> files, std::span<const ReadUnit> units,
                           const OnVerified& on_verified, const OnBad& on_bad, const OnProgress& on_progress = {});

 private:
  class Run;

  FileSystem& fs_;
  Pool& pool_;
  const Options options_;
  const Log log_;
};

[[nodiscard]] BlockReader::Options block_reader_options(const ReadOptions& options);
// For a reader that was lent no pool: about options.buffer_bytes, but no more than it takes to read `size_bytes`.
[[nodiscard]] Result<std::unique_ptr<Pool>> make_read_pool(const ReadOptions& options, std::uint64_t size_bytes);

}  // namespace slackwater
