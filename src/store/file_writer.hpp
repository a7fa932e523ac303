// FileWriter: takes full slabs, checksums them, writes them at their final offset, and gives them back once the write
// has completed. It has one thread, "sw-write", and one I/O queue. If a file fails, its remaining slabs are given back
// unwritten; other files go on.
// Owner: the engine's Pipeline. Thread rule: every call may come from any thread. Callbacks run on the writer's thread
// and must not block. Lifetime: the FileSystem outlives it; the destructor waits for writes in flight, then joins.
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

// A piece of a file, in memory lent to the writer.
struct SlabWrite {
  std::span<std::byte> memory;  // whole slab; zero from size_bytes to the next multiple of 4096
  int buffer = -1;              // registered-buffer number, or -1
  std::uint64_t offset = 0;     // in the file, a multiple of kBlockBytes
  std::uint64_t size_bytes = 0;
  std::move_only_function<void()> release;  // called exactly once, when the memory is no longer needed
};

struct WrittenFile {
  DurableFile file;                          // every write has completed; nothing is synced yet
  std::vector<std::uint64_t> block_digests;  // XXH3-64 of each 1 MiB block of exact file bytes
};

struct FileSpec {
  std::string path;
  std::uint64_t size_bytes = 0;
  bool direct = true;
  // Called when there is no space for the file. May take its time; true if it made room and a retry is worthwhile.
  std::function<bool()> make_room = {};
  // Gets the number of bytes written so far; may be called often.
  std::function<void(std::uint64_t)> on_progress;
  // Called once, when every block is checksummed, whether or not it is written yet. Not if the file fails before.
  std::move_only_function<void(const std::vector<std::uint64_t>& block_digests)> on_hashed = {};
  // Called once, when the file is complete or has failed; then with the first error. Every slab given so far has been
  // released, and later ones are released as they arrive.
  std::move_only_function<void(Result<WrittenFile>)> on_written;
};

struct FileWriterOptions {
  unsigned queue_depth = 0;  // 0: auto
  bool force_threads = false;
  unsigned buffer_slots = 0;  // slabs of the pool
};

class FileWriter {
 public:
  using FileId = std::uint64_t;

  [[nodiscard]] static Result<std::unique_ptr<FileWriter>> create(FileSystem& fs, const FileWriterOptions& options,
                                                                  Log log);
  ~FileWriter();

  // Registers one slab of the pool with the queue, in the background. A refusal is logged once; writes then go without
  // registration.
  void register_buffer(int index, std::span<std::byte> memory);

  [[nodiscard]] FileId begin(FileSpec spec);
  void write(FileId file, SlabWrite slab);
  // The file ends with this error as soon as its writes in flight have completed.
  void abandon(FileId file, Error error);

  [[nodiscard]] std::string backend() const;  // "io_uring" or "threads"
  [[nodiscard]] bool direct() const;          // false once O_DIRECT was refused
  [[nodiscard]] bool registered_buffers() const;
  [[nodiscard]] std::uint64_t bytes_written() const;

 private:
  class Impl;
  explicit FileWriter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace slackwater
