// Stream and Slab: what the writer knows of a file under way and of each piece of memory lent to it.
// Owned by StreamWriter, used by its thread alone. A Slab lives until its memory was given back; a Stream until its end
// was reported.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <vector>

#include "os/durable.hpp"
#include "slackwater/error.hpp"
#include "store/stream_writer.hpp"

namespace slackwater {

struct Stream;

struct Slab {
  Slab(SlabWrite lent, Stream& owner) : write(std::move(lent)), stream(owner) {}

  SlabWrite write;
  Stream& stream;
  unsigned requests = 0;           // not completed yet, in flight or pending
  std::uint64_t hashed_bytes = 0;  // whole blocks, but for the end of the stream
  [[nodiscard]] bool hashed() const { return hashed_bytes == write.size_bytes; }
};

struct Stream {
  Stream(StreamWriter::StreamId stream_id, StreamSpec stream_spec);

  // kInternal unless the piece is aligned, inside the stream, backed by memory up to the rounded size, and given for
  // the first time.
  [[nodiscard]] Status accept(const SlabWrite& piece);
  // Checksums the next block of `slab`.
  void hash_block(Slab& slab);
  [[nodiscard]] bool complete() const { return written_bytes == spec.size_bytes && hashed_bytes == spec.size_bytes; }

  const StreamWriter::StreamId id;
  StreamSpec spec;
  std::optional<DurableFile> file;
  std::vector<std::uint64_t> block_digests;
  std::vector<bool> block_given;
  std::uint64_t written_bytes = 0;  // exact, completed
  std::uint64_t hashed_bytes = 0;
  unsigned in_flight = 0;       // requests the queue has
  bool leaving_direct = false;  // O_DIRECT was refused: no request is begun until those in flight are back
  std::optional<Error> error;   // the first one; ends the stream
  std::list<Slab> slabs;
};

}  // namespace slackwater
