// StreamWriter: takes full slabs, checksums and writes them at their final offset, gives the slabs back when the write
// completed. One thread ("sw-write"), one I/O queue. A stream that fails drains its slabs unwritten; the others go on.
// Thread rule: all calls from any thread; callbacks come from the writer's thread and must not block.
// Lifetime: FileSystem outlives it; the destructor waits for writes in flight, then joins.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "os/durable.hpp"
#include "os/file_system.hpp"
#include "slackwater/error.hpp"

namespace slackwater {

// A piece of a stream in memory somebody lent us.
struct SlabWrite {
  std::span<std::byte> memory;  // whole slab; zero from size_bytes to the next multiple of 4096
  int buffer = -1;              // registered-buffer number, or -1
  std::uint64_t offset = 0;     // in the stream, a multiple of kBlockBytes
  std::uint64_t size_bytes = 0;
  std::move_only_function<void()> release;  // called exactly once, when the memory is no longer needed
};

struct WrittenStream {
  DurableFile file;                          // every byte handed to the kernel and completed; not synced yet
  std::vector<std::uint64_t> block_digests;  // XXH3-64 of each 1 MiB block of exact file bytes
};

struct StreamSpec {
  std::string path;
  std::uint64_t size_bytes = 0;
  bool direct = true;
  // There is no space for the file. True: some was made, so it is worth another try. Waits as long as that takes.
  std::function<bool()> make_room = {};
  // Of the bytes written so far; may be called often.
  std::function<void(std::uint64_t)> on_progress;
  // Once: complete, or the first error (all slabs given so far have been released, or will be as they arrive).
  std::move_only_function<void(Result<WrittenStream>)> on_written;
};

struct StreamWriterOptions {
  unsigned queue_depth = 0;  // 0: auto
  bool force_threads = false;
  unsigned buffer_slots = 0;  // slabs of the pool
};

class StreamWriter {
 public:
  using StreamId = std::uint64_t;

  [[nodiscard]] static Result<std::unique_ptr<StreamWriter>> create(FileSystem& fs, const StreamWriterOptions& options,
                                                                    Log log);
  ~StreamWriter();

  // Registers one slab of the pool with the queue, in the background; a refusal is logged once and unregistered writes
  // are used.
  void register_buffer(int index, std::span<std::byte> memory);

  [[nodiscard]] StreamId begin(StreamSpec spec);
  void write(StreamId stream, SlabWrite slab);
  // The stream ends with this error once its writes in flight completed.
  void abandon(StreamId stream, Error error);

  [[nodiscard]] std::string backend() const;  // "io_uring" or "threads"
  [[nodiscard]] bool direct() const;          // false once O_DIRECT was refused
  [[nodiscard]] bool registered_buffers() const;
  [[nodiscard]] std::uint64_t bytes_written() const;

 private:
  class Impl;
  explicit StreamWriter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace slackwater
