// UringQueue: the I/O queue on io_uring, with registered buffers and files. The only part that names liburing.
// Thread rule: io_queue.hpp. The thread that made it need not be the one that uses it, so the ring is not bound to a single
// issuer. In a forked child every call answers kClosed: the ring's memory is not there.
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
  // An Error when the kernel does not permit io_uring or lacks a part that is needed (Linux 5.11).
  [[nodiscard]] static Result<std::unique_ptr<IoQueue>> create(const IoQueueOptions& options);
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
  // One request under way.
  struct Slot {
    IoRequest request;
    Transfer transfer;
    int file_place = -1;  // in files_, or -1: by descriptor
  };
  // One place of the kernel's table of registered files.
  struct FilePlace {
    std::uint64_t serial = 0;  // of the PosixFile; 0: empty
    std::uint64_t last_used = 0;
    unsigned in_flight = 0;
  };

  explicit UringQueue(const IoQueueOptions& options);
  [[nodiscard]] Status start();
  [[nodiscard]] io_uring_sqe* next_sqe();
  [[nodiscard]] bool queue_piece(unsigned slot);
  [[nodiscard]] int place_of(File& file);
  void arm_wake();
  [[nodiscard]] bool consume_wake();
  [[nodiscard]] bool reap(std::vector<IoCompletion>& completions);
  void finish(unsigned slot, Result<std::uint64_t> result, std::vector<IoCompletion>& completions);
  [[nodiscard]] Status enter(std::optional<Duration> timeout);
  void drain();

  const unsigned depth_;
  const unsigned buffer_slots_;

  io_uring ring_{};
  bool ring_made_ = false;
  bool buffers_registered_ = false;  // the table is there, its places are filled one by one
  bool files_registered_ = false;
  std::vector<Slot> slots_;
  std::vector<unsigned> free_;   // slots not under way
  std::vector<unsigned> again_;  // slots whose next piece found no room in the submission queue
  std::array<FilePlace, 16> files_{};
  std::uint64_t uses_ = 0;

  UniqueFd wake_event_;
  bool wake_armed_ = false;               // a poll of wake_event_ is in the ring
  std::atomic<bool> wake_asked_ = false;  // set by wake(), cleared by the wait() that returns for it

  bool disowned_ = false;  // in a forked child
  ForkGuard guard_;
};

}  // namespace slackwater
