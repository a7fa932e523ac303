// UringQueue: the I/O queue on io_uring, with registered buffers and files. The only user of liburing.
// Owner, thread rule and lifetime: io_queue.hpp. One thread may make it and another use it, so the ring is not bound to
// a single issuer. In a forked child every call returns kClosed, because the ring's memory does not exist there.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include <liburing.h>

#include "base/fork_guard.hpp"
#include "base/unique_fd.hpp"
#include "os/io_queue.hpp"
#include "os/transfer.hpp"

namespace slackwater {

class UringQueue final : public IoQueue {
 public:
  // How long no transfer may end before the kernel is nudged, see nudge().
  static constexpr Duration kNudgeAfter = std::chrono::seconds(1);

  // An Error if the kernel does not permit io_uring or is older than Linux 5.11. Tests make `nudge_after` shorter.
  [[nodiscard]] static Result<std::unique_ptr<IoQueue>> create(const IoQueueOptions& options,
                                                               Duration nudge_after = kNudgeAfter);
  ~UringQueue() override;

  [[nodiscard]] std::string_view backend() const override { return "io_uring"; }
  [[nodiscard]] unsigned depth() const override { return depth_; }
  [[nodiscard]] unsigned in_flight() const override { return depth_ - static_cast<unsigned>(free_.size()); }
  [[nodiscard]] Status register_buffer(int index, std::span<std::byte> memory) override;
  [[nodiscard]] Status submit(const IoRequest& request) override;
  [[nodiscard]] Status wait(std::vector<IoCompletion>& completions, std::optional<Duration> timeout) override;
  void forget(File& file) override;
  void wake() override;

 private:
  // One request in flight.
  struct Slot {
    IoRequest request;
    Transfer transfer;
    int file_slot = -1;  // index into files_; -1: use the descriptor
  };
  // One slot of the kernel's table of registered files.
  struct FileSlot {
    std::uint64_t serial = 0;  // PosixFile::serial(); 0: the slot is free
    std::uint64_t last_used = 0;
    unsigned in_flight = 0;
  };

  UringQueue(const IoQueueOptions& options, Duration nudge_after);
  [[nodiscard]] Status start();
  [[nodiscard]] io_uring_sqe* next_sqe();
  [[nodiscard]] bool queue_piece(unsigned slot);
  [[nodiscard]] int register_file(File& file);  // its index in files_; -1 if it cannot be registered
  void arm_wake();
  [[nodiscard]] bool consume_wake();
  [[nodiscard]] bool reap(std::vector<IoCompletion>& completions);
  void finish(unsigned slot, Result<std::uint64_t> result, std::vector<IoCompletion>& completions);
  [[nodiscard]] Status enter(std::optional<Duration> timeout);
  void drain();
  void nudge();

  const unsigned depth_;
  const unsigned buffer_slots_;
  const Duration nudge_after_;

  io_uring ring_{};
  bool ring_made_ = false;
  bool buffers_registered_ = false;  // the table exists; its slots are filled one by one
  bool files_registered_ = false;
  std::vector<Slot> slots_;
  std::vector<unsigned> free_;      // slots without a request
  std::vector<unsigned> unqueued_;  // slots whose next piece found the submission queue full
  std::array<FileSlot, 16> files_{};
  std::uint64_t uses_ = 0;

  std::chrono::steady_clock::time_point quiet_since_;  // no transfer has ended since then
  unsigned nudges_ = 0;                                // in the ring

  UniqueFd wake_event_;
  bool wake_armed_ = false;               // a poll of wake_event_ is in the ring
  std::atomic<bool> wake_asked_ = false;  // set by wake(), cleared by the wait() that returns because of it

  bool disowned_ = false;  // in a forked child
  ForkGuard guard_;
};

}  // namespace slackwater
