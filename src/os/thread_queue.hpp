// ThreadQueue: the I/O queue for machines without io_uring. Worker threads ("sw-io-N") call pread and pwrite.
// Owner, thread rule and lifetime: io_queue.hpp. In a forked child every call returns kClosed, and the destructor does
// not wait.
#pragma once

#include <memory>
#include <string>

#include "base/fork_guard.hpp"
#include "os/io_queue.hpp"

namespace slackwater {

class ThreadQueue final : public IoQueue {
 public:
  static constexpr unsigned kDiskWorkers = 8;  // enough to fill a disk with large requests

  // kOutOfMemory if not even one thread can be started. Fewer than wanted are enough.
  [[nodiscard]] static Result<std::unique_ptr<IoQueue>> create(const IoQueueOptions& options,
                                                               std::string fallback_reason,
                                                               unsigned workers = kDiskWorkers);
  ~ThreadQueue() override;

  [[nodiscard]] std::string_view backend() const override { return "threads"; }
  [[nodiscard]] std::string fallback_reason() const override { return fallback_reason_; }
  [[nodiscard]] unsigned depth() const override { return depth_; }
  [[nodiscard]] unsigned in_flight() const override { return in_flight_; }
  [[nodiscard]] Status register_buffer(int index, std::span<std::byte> memory) override;
  [[nodiscard]] Status submit(const IoRequest& request) override;
  [[nodiscard]] Status wait(std::vector<IoCompletion>& completions, std::optional<Duration> timeout) override;
  void wake() override;

 private:
  struct Shared;
  ThreadQueue(unsigned depth, std::string fallback_reason);

  const unsigned depth_;
  const std::string fallback_reason_;
  unsigned in_flight_ = 0;  // submitted, but completion not yet returned; used by the owning thread only
  std::unique_ptr<Shared> shared_;
  bool disowned_ = false;  // in a forked child, where the workers do not exist
  ForkGuard guard_;
};

}  // namespace slackwater
