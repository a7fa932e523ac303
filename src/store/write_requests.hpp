// WriteRequests: the write requests of all slabs, first those that wait, then those that the I/O queue has in flight.
// Owner: FileWriter. Thread rule: the writer's thread alone.
// Lifetime: a Slab stays until its requests have completed or were dropped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <vector>

#include "os/io_queue.hpp"
#include "slackwater/error.hpp"
#include "store/pending_file.hpp"
#include "store/registered_buffers.hpp"

namespace slackwater {

// A part of a slab on its way to the file.
struct WriteRequest {
  Slab* slab = nullptr;
  std::uint64_t begin = 0;       // in the slab
  std::uint64_t size_bytes = 0;  // rounded up to what O_DIRECT takes
};

class WriteRequests {
 public:
  explicit WriteRequests(std::size_t depth);

  // Cuts a slab into requests, which wait behind those already there.
  void add(Slab& slab);
  // Puts a request that has to be written once more in front of all others.
  void retry(const WriteRequest& request) { waiting_.push_front(request); }
  // Drops the requests of a file that are not in flight.
  void drop(const PendingFile& file);

  struct Refused {
    PendingFile* file;
    Error error;
  };
  // Hands waiting requests to the queue until it is full or none is left. Stops at a request that the queue refuses;
  // its file has to be failed before the next call.
  [[nodiscard]] std::optional<Refused> submit(IoQueue& queue, const RegisteredBuffers& buffers);
  // The request that completed with this tag. It is not in flight any more.
  [[nodiscard]] WriteRequest take_completed(std::size_t tag);

 private:
  std::list<WriteRequest> waiting_;      // in the order they came
  std::vector<WriteRequest> in_flight_;  // by tag
  std::vector<std::size_t> free_tags_;
};

}  // namespace slackwater
