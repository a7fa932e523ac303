#include "store/write_requests.hpp"

#include <algorithm>
#include <utility>

#include "base/units.hpp"

namespace slackwater {
namespace {

// Measured (virtio disk, ext4): whole slabs of 8 MiB are written as fast as smaller requests at any depth, with fewer
// system calls.
constexpr std::uint64_t kMaxRequestBytes = 8u << 20;

}  // namespace

WriteRequests::WriteRequests(std::size_t depth) : in_flight_(depth) {
  for (std::size_t tag = 0; tag < depth; ++tag) free_tags_.push_back(tag);
}

void WriteRequests::add(Slab& slab) {
  const std::uint64_t rounded = round_up(slab.write.size_bytes, kDirectAlignment);
  for (std::uint64_t begin = 0; begin < rounded; begin += kMaxRequestBytes) {
    waiting_.push_back({&slab, begin, std::min(kMaxRequestBytes, rounded - begin)});
    ++slab.requests;
  }
}

void WriteRequests::drop(const PendingFile& file) {
  std::erase_if(waiting_, [&](const WriteRequest& request) {
    if (&request.slab->file != &file) return false;
    --request.slab->requests;
    return true;
  });
}

std::optional<WriteRequests::Refused> WriteRequests::submit(IoQueue& queue, const RegisteredBuffers& buffers) {
  for (auto next = waiting_.begin(); next != waiting_.end() && !free_tags_.empty();) {
    // This file is about to change from direct to buffered writes, which needs a descriptor without writes in flight.
    // Requests of other files do not wait for it.
    PendingFile& file = next->slab->file;
    if (file.leaving_direct) {
      ++next;
      continue;
    }
    const std::size_t tag = free_tags_.back();
    const SlabWrite& write = next->slab->write;
    Status status = queue.submit({.op = IoOp::kWrite,
                                  .file = &file.durable->file(),
                                  .data = write.memory.data() + next->begin,
                                  .size_bytes = next->size_bytes,
                                  .offset = write.offset + next->begin,
                                  .buffer = buffers.registered(write.buffer) ? write.buffer : -1,
                                  .tag = tag});
    if (!status) {
      // A full queue is no error as long as something is in flight: its completion makes room. Otherwise nothing would
      // ever wake the writer, so the file has to fail.
      if (status.error().retryable && queue.in_flight() > 0) return std::nullopt;
      return Refused{&file, std::move(status.error())};
    }
    free_tags_.pop_back();
    in_flight_[tag] = *next;
    ++file.in_flight;
    next = waiting_.erase(next);
  }
  return std::nullopt;
}

WriteRequest WriteRequests::take_completed(std::size_t tag) {
  free_tags_.push_back(tag);
  const WriteRequest request = std::exchange(in_flight_[tag], {});
  --request.slab->file.in_flight;
  return request;
}

}  // namespace slackwater
