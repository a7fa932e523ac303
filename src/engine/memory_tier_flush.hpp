// MemoryTierFlush: writes a step that was restored from memory to tier 0, in the background. A step that is only in
// memory can be committed under its own attempt alone, so this ends before the next attempt begins.
// Owner: MemoryTier. Thread rule: any thread. The thread "sw-flush" is started by begin() and joined by stop().
// Lifetime: FileSystem and Clock outlive it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "keeper/flush.hpp"
#include "os/clock.hpp"
#include "os/file_system.hpp"

namespace slackwater {

class MemoryTierFlush {
 public:
  using Deadline = std::optional<std::chrono::steady_clock::time_point>;
  using OnCommitted = std::function<void(const Manifest&)>;  // called by sw-flush, without a lock

  MemoryTierFlush(FileSystem& fs, const Clock& clock, std::string root, Log log);
  ~MemoryTierFlush();

  // As for flush_version(). What was under way before is given up. If it hangs, this one waits for its end: both may
  // use the same names.
  void begin(std::vector<RankPart> parts, std::string member, OnCommitted on_committed);
  // Instead of begin(): the step cannot be written.
  void refuse(std::uint64_t step, Error error);
  // True: nothing is being written any more.
  [[nodiscard]] bool wait(Deadline deadline);
  // From here on nothing is published. What hangs in a write goes on until stop().
  void give_up(const char* why);
  // Gives up and joins. Later calls of begin() do nothing.
  void stop();
  // Why the last step was not committed. nullopt: it was, or there was none.
  [[nodiscard]] std::optional<Error> error() const;

 private:
  struct Run;

  FileSystem& fs_;
  const Clock& clock_;
  const std::string root_;
  const Log log_;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::shared_ptr<Run> current_;  // null: nothing is being written
  std::vector<std::shared_ptr<Run>> runs_;
  std::optional<Error> error_;
  bool stopped_ = false;
};

}  // namespace slackwater
