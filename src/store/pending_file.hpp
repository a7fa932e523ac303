// PendingFile: what the writer knows about a file under way. Slab: one piece of memory lent to it.
// Owner: FileWriter. Thread rule: the writer's thread alone.
// Lifetime: a Slab lives until its memory is given back, a PendingFile until its end is reported.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <vector>

#include "os/durable.hpp"
#include "slackwater/error.hpp"
#include "store/file_writer.hpp"

namespace slackwater {

struct PendingFile;

struct Slab {
  Slab(SlabWrite lent, PendingFile& owner) : write(std::move(lent)), file(owner) {}

  SlabWrite write;
  PendingFile& file;
  unsigned requests = 0;           // not completed yet, whether waiting or in flight
  std::uint64_t hashed_bytes = 0;  // whole blocks, except at the end of the file
  [[nodiscard]] bool hashed() const { return hashed_bytes == write.size_bytes; }
};

struct PendingFile {
  PendingFile(FileWriter::FileId file_id, FileSpec file_spec);

  // kInternal unless the piece is aligned, lies inside the file, is backed by memory up to its rounded size, and was
  // not given before.
  [[nodiscard]] Status accept(const SlabWrite& piece);
  // Checksums the next block of `slab`.
  void hash_block(Slab& slab);
  [[nodiscard]] bool complete() const { return written_bytes == spec.size_bytes && hashed_bytes == spec.size_bytes; }

  const FileWriter::FileId id;
  FileSpec spec;
  std::optional<DurableFile> durable;
  std::vector<std::uint64_t> block_digests;
  std::vector<bool> block_given;
  std::uint64_t written_bytes = 0;  // exact, completed
  std::uint64_t hashed_bytes = 0;
  unsigned in_flight = 0;       // requests that the queue has
  bool leaving_direct = false;  // O_DIRECT was refused: no request is begun until those in flight are done
  std::optional<Error> error;   // the first one; ends the file
  std::list<Slab> slabs;
};

}  // namespace slackwater
