// BandwidthCap: keeps the bytes that one rank sends to one tier below a rate, averaged over a second or so.
// Owned by a promoter or a verb of the CLI. Thread rule: thread-safe.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <stop_token>

#include "os/clock.hpp"

namespace slackwater {

class BandwidthCap {
 public:
  explicit BandwidthCap(std::uint64_t bytes_per_second) : bytes_per_second_(bytes_per_second) {}  // 0: no cap

  // Books these bytes. They may be sent at the time returned, which may be in the past.
  [[nodiscard]] TimePoint book(std::uint64_t size_bytes, TimePoint now);
  // Books, and sleeps until then. False: told to stop.
  [[nodiscard]] bool wait(std::uint64_t size_bytes, const std::stop_token& stop);
  // Grows while somebody waits here: whoever does is as fast as the cap allows.
  [[nodiscard]] std::uint64_t pauses() const { return pauses_; }

 private:
  const std::uint64_t bytes_per_second_;
  std::mutex mutex_;
  std::condition_variable_any stopped_;  // never notified: a stop ends the wait
  std::atomic<std::uint64_t> pauses_{0};
  TimePoint free_at_{};  // when all that was booked is sent; guarded by mutex_
};

}  // namespace slackwater
