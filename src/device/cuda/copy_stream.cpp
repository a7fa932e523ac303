#include "device/cuda/copy_stream.hpp"

#include <algorithm>
#include <vector>

#include "base/result.hpp"

namespace slackwater::cuda {

CopyStream::CopyStream(EventPool& events, Copier& copier, std::uint64_t turn_bytes, std::size_t turn_copies)
    : events_(events),
      copier_(copier),
      turn_bytes_(turn_bytes),
      turn_copies_(turn_copies),
      streams_{Stream(events.context()), Stream(events.context())} {}

CopyStream::~CopyStream() {
  for (CUevent event : turn_ends_)
    if (event != nullptr) events_.give_back(event);
}

Status CopyStream::open() {
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    SW_TRY(streams_[i].open());
    copier_.limit(events_, streams_[i].get());
    SW_ASSIGN(turn_ends_[i], events_.take());
  }
  return {};
}

Status CopyStream::wait_for(const StreamEvent& event) {
  const std::lock_guard lock(mutex_);
  SW_TRY(copier_.admit(current()));
  return event.stream_wait(events_.context(), current());
}

// The lock is held throughout. A turn that began while another thread still queues copies of the turn before would not
// wait for those.
Status CopyStream::queue(std::span<const CopyPiece> pieces, CopyPace pace) {
  const std::lock_guard lock(mutex_);
  if (pace == CopyPace::kAtOnce || turn_bytes_ == 0) {
    bytes_in_turn_ = turn_bytes_;  // a turn that follows begins afresh
    return copier_.queue(pieces, CopyDirection::kToHost, current());
  }
  std::vector<CopyPiece> together;  // of this turn, so that they leave in one batch
  const auto flush = [&]() -> Status {
    Status status = copier_.queue(together, CopyDirection::kToHost, current());
    together.clear();
    return status;
  };
  for (CopyPiece rest : pieces) {
    while (rest.size_bytes > 0) {
      CopyPiece piece = rest;
      piece.size_bytes = std::min(rest.size_bytes, turn_bytes_);
      if (bytes_in_turn_ + piece.size_bytes > turn_bytes_ || copies_in_turn_ >= turn_copies_) {
        SW_TRY(flush());
        SW_TRY(begin_turn());
      }
      bytes_in_turn_ += piece.size_bytes;
      ++copies_in_turn_;
      together.push_back(piece);
      rest.begin += piece.size_bytes;
      rest.host += piece.size_bytes;
      rest.size_bytes -= piece.size_bytes;
    }
  }
  return flush();
}

Status CopyStream::queue_blocks(std::span<const Block> blocks, CopyPace pace) {
  const std::lock_guard lock(mutex_);
  if (pace == CopyPace::kAtOnce || turn_bytes_ == 0) {
    return copier_.queue_blocks(blocks, CopyDirection::kToHost, current());
  }
  while (!blocks.empty()) {
    const std::size_t count = std::min(blocks.size(), turn_copies_);
    if (copies_in_turn_ + count > turn_copies_) SW_TRY(begin_turn());
    copies_in_turn_ += count;
    SW_TRY(copier_.queue_blocks(blocks.first(count), CopyDirection::kToHost, current()));
    blocks = blocks.subspan(count);
  }
  return {};
}

// All that was queued before, waits included, is on the stream of the last turn or ordered before it. So a single event
// keeps the order. It may be recorded again while a stream still waits for its last record: the wait was for that one.
Status CopyStream::begin_turn() {
  const Context& context = events_.context();
  CUevent end = turn_ends_[current_];
  SW_TRY(copier_.admit(current()));
  SW_TRY(context.check(context.driver().cuEventRecord(end, current()), "cuEventRecord"));
  const std::size_t next = 1 - current_;
  SW_TRY(copier_.admit(streams_[next].get()));
  SW_TRY(context.check(context.driver().cuStreamWaitEvent(streams_[next].get(), end, 0), "cuStreamWaitEvent"));
  current_ = next;
  bytes_in_turn_ = 0;
  copies_in_turn_ = 0;
  return {};
}

Result<std::shared_ptr<StreamEvent>> CopyStream::record() {
  const std::lock_guard lock(mutex_);
  SW_TRY(copier_.admit(current()));
  return StreamEvent::record(events_, std::array{current()});
}

void CopyStream::drain() {
  for (const Stream& stream : streams_) (void)wait_for_stream(events_, stream.get());
}

std::uint64_t CopyStream::operations(std::uint64_t copies, std::uint64_t size_bytes) const {
  if (turn_bytes_ == 0) return copier_.operations(copies);
  const std::uint64_t turns = size_bytes / turn_bytes_ + copies / turn_copies_ + 1;
  return copier_.operations(copies) + turns - 1;
}

}  // namespace slackwater::cuda
