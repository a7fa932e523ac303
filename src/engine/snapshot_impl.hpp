// Snapshot::Impl: the state machine of one snapshot: captured -> fenced -> staged -> durable -> committed, or failed
// from any level before that. Shared by the user's handle and the engine's threads. It holds only a few fields, so a
// kept handle costs nothing.
// Thread rule: thread-safe. In a forked child nothing is locked: EngineStatus::disowned is checked first.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "device/async_device.hpp"
#include "engine/engine_status.hpp"
#include "engine/snapshot_hooks.hpp"
#include "engine/snapshot_verdict.hpp"
#include "slackwater/engine.hpp"
#include "stage/stager.hpp"

namespace slackwater {

class Snapshot::Impl {
 public:
  using Instant = EngineStatus::Instant;

  struct Spec {
    std::uint64_t step = 0;
    Instant::time_point save_began;
    std::chrono::milliseconds stall_timeout{};
    bool sealed_by_caller = false;
    std::uint64_t tensor_count = 0;
    std::uint64_t at_once_bytes = 0;
    std::optional<std::vector<std::uint32_t>> at_once_tensors = {};  // none: nothing was captured
    double busy_seconds = 0;
  };
  Impl(const Spec& spec, std::shared_ptr<EngineStatus> engine_status);

  // For the user, as in slackwater/engine.hpp.
  Status fence(std::span<const StreamRef> streams);  // no streams: wait on the host
  Status wait(Level level, std::optional<std::chrono::milliseconds> timeout);
  [[nodiscard]] bool wait_released(std::optional<std::chrono::milliseconds> timeout) const;
  void seal(std::vector<std::string> torn_tensors, const std::vector<std::string>& freed_tensors);
  [[nodiscard]] std::optional<Error> error() const;
  [[nodiscard]] Progress progress() const;
  [[nodiscard]] SnapshotStats stats() const;
  [[nodiscard]] std::string part() const;
  [[nodiscard]] std::uint64_t step() const { return spec_.step; }
  [[nodiscard]] std::vector<std::uint32_t> at_once_tensors() const {
    return spec_.at_once_tensors.value_or(std::vector<std::uint32_t>());
  }

  // For the engine.
  [[nodiscard]] SnapshotHooks& hooks() { return hooks_; }  // retired when the engine releases the snapshot
  void finish_save();                                      // save() is about to return
  void set_total(std::uint64_t total_bytes);               // the layout is known
  void add_staged(std::uint64_t bytes);
  void add_written(std::uint64_t bytes);
  // No effect on a failed snapshot. `points`, for kFenced: every copy is made, or queued before one of these.
  void reach(Level level, std::vector<DevicePoint> points = {});
  void release_sources();  // no source byte will be read any more
  // The first error stays. No effect once the decision has begun: from then on only the disk decides.
  void fail(Error error);
  void fail_torn(std::vector<std::string> tensors, std::optional<Error> error = {});  // at least one
  // The point of no return, for sw-commit. Waits until the snapshot is sealed or failed. Returns the error if it
  // failed; otherwise only conclude() can end it from now on.
  [[nodiscard]] std::optional<Error> begin_decision();
  void set_part(std::string part);                   // before conclude()
  [[nodiscard]] std::optional<Error> wait_sealed();  // the same wait, without consequences
  void conclude(const Status& outcome);              // committed, or failed with this error
  [[nodiscard]] std::vector<std::string> torn_tensors() const;

 private:
  // Waits until the sources are released. With `queued_is_enough`: or until all copies are queued. False: the snapshot
  // was given up, and a device still reads the sources.
  [[nodiscard]] bool wait_for_copies(std::unique_lock<std::mutex>& lock, bool queued_is_enough);

  const Spec spec_;
  const std::shared_ptr<EngineStatus> engine_status_;

  std::atomic<std::uint64_t> staged_bytes_{0};
  std::atomic<std::uint64_t> written_bytes_{0};

  SnapshotHooks hooks_;

  mutable std::mutex mutex_;  // guards all below
  mutable std::condition_variable changed_;
  Level level_ = Level::kCaptured;
  SnapshotVerdict verdict_;
  std::string part_;  // of State::part
  bool released_ = false;
  std::vector<DevicePoint> points_;  // after all copies of each device; empty once released
  SnapshotStats stats_;
};

// The error of every call in a forked child.
[[nodiscard]] Error disowned_error();

}  // namespace slackwater
