// CopyStream: the stream on which a device's snapshots are copied. It keeps the order of one stream, but it is two,
// which take turns: each turn waits, on the device, for the turn before it.
//
// Why: a copy engine ignores priorities and serves the ready copies of one stream back to back. With one stream, a
// small copy of the trainer, such as loss.item(), would wait until that stream has run dry, and it never does while
// more is queued in time. With turns, never more than one turn of ours is ready. When it ends, the trainer's copy,
// which has been ready for longer than our next turn, is served first. No thread has to do anything for that.
// A turn is at most so many bytes and copies. Short turns let the trainer pass sooner, but each one costs
// the engine a few microseconds (docs/decisions/0014-copies-ahead.md).
//
// Owner: CudaDevice. Thread rule: thread-safe; callers are inside a Scope. A call may sleep until the device has done
// some of what is queued (SubmissionLimit). Lifetime: context, events and copier outlive it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>

#include "device/cuda/blocks.hpp"
#include "device/cuda/copier.hpp"
#include "device/cuda/objects.hpp"

namespace slackwater::cuda {

enum class CopyPace : std::uint8_t {
  kInTurns,  // the trainer's copies may pass after each turn
  kAtOnce,   // as few operations as possible; the trainer's copies wait for all of it
};

// Copies in one turn, at most: small copies take longer than their bytes say.
inline constexpr std::size_t kTurnCopies = 64;
// The first samples of a snapshot: each is a 2D copy of 16 rows, so a turn of them takes as long as fewer copies.
inline constexpr std::size_t kTurnSamples = 8;

class CopyStream {
 public:
  // `turn_bytes` 0: no turns, whatever the pace.
  CopyStream(EventPool& events, Copier& copier, std::uint64_t turn_bytes, std::size_t turn_copies = kTurnCopies);
  ~CopyStream();  // needs no Scope

  [[nodiscard]] Status open();  // call once, before anything else
  // What is queued from now on runs after `event`.
  [[nodiscard]] Status wait_for(const StreamEvent& event);
  // To the host. As Copier::queue: on return they are queued, and after an error some may be.
  [[nodiscard]] Status queue(std::span<const CopyPiece> pieces, CopyPace pace);
  [[nodiscard]] Status queue_blocks(std::span<const Block> blocks, CopyPace pace);
  // A point after everything that is queued so far.
  [[nodiscard]] Result<std::shared_ptr<StreamEvent>> record();
  // Returns when everything queued so far is done, or the device has failed. For error paths.
  void drain();
  // At most how many calls it takes to queue so many copies of contiguous bytes in turns.
  [[nodiscard]] std::uint64_t operations(std::uint64_t copies, std::uint64_t size_bytes) const;

 private:
  // All of these need mutex_.
  [[nodiscard]] CUstream current() const { return streams_[current_].get(); }
  [[nodiscard]] Status begin_turn();

  EventPool& events_;
  Copier& copier_;
  const std::uint64_t turn_bytes_;
  const std::size_t turn_copies_;

  std::mutex mutex_;
  std::array<Stream, 2> streams_;       // constant once open
  std::array<CUevent, 2> turn_ends_{};  // constant once open; one per stream, recorded again at the end of each turn
  std::size_t current_ = 0;             // guarded by mutex_, like the next two
  std::uint64_t bytes_in_turn_ = 0;
  std::size_t copies_in_turn_ = 0;
};

}  // namespace slackwater::cuda
