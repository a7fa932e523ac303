// Snapshot::Impl: the state machine of one snapshot. captured -> fenced -> staged -> durable -> committed, or failed from anywhere before.
// Shared by the user's handle and the engine's threads; holds no memory but its own few fields, so that a kept handle costs nothing.
// Thread rule: thread-safe. In a forked child nothing is locked: SharedFacts::disowned is asked first.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "device/async_device.hpp"
#include "engine/shared_facts.hpp"
#include "slackwater/engine.hpp"
#include "stage/stager.hpp"

namespace slackwater {

class Snapshot::Impl {
 public:
  using Instant = SharedFacts::Instant;

  struct Spec {
    std::uint64_t step = 0;
    Instant::time_point save_began;
    std::chrono::milliseconds stall_timeout{};
    bool sealed_by_caller = false;
    std::uint64_t tensor_count = 0;
    std::uint64_t at_once_bytes = 0;
    double busy_seconds = 0;
  };
  Impl(const Spec& spec, std::shared_ptr<SharedFacts> facts);

  // The user's side; slackwater/engine.hpp says what they mean.
  Status fence(std::span<const StreamRef> streams);  // none: on the host
  Status wait(Level level, std::optional<std::chrono::milliseconds> timeout);
  [[nodiscard]] bool released() const;
  [[nodiscard]] bool wait_released(std::optional<std::chrono::milliseconds> timeout) const;
  void seal(std::vector<std::string> torn_tensors);
  [[nodiscard]] std::optional<Error> error() const;
  [[nodiscard]] Progress progress() const;
  [[nodiscard]] SnapshotStats stats() const;
  [[nodiscard]] std::uint64_t step() const { return spec_.step; }

  // The engine's side.
  void set_cancel(std::function<void(Error)> cancel);  // how to give it up while it is under way
  void finish_save();                                  // save() is about to return
  void set_total(std::uint64_t total_bytes);           // the layout is known
  void add_staged(std::uint64_t bytes);
  void add_written(std::uint64_t bytes);
  void reach(Level level);                             // no effect on a failed snapshot
  void reach_fenced(std::vector<DevicePoint> points);  // all copies are made, or queued before these points
  void release_sources();                              // no source byte will be read any more
  // The first error stays. No effect once the decision has begun: what is on disk then decides, not who comes last.
  void fail(Error error);
  void fail_torn(std::vector<std::string> tensors);  // at least one
  [[nodiscard]] bool failed() const;
  // The point of no return, for the commit thread: waits until the snapshot is sealed or failed, then answers the error, or
  // nothing, and from then on only conclude() can end it.
  [[nodiscard]] std::optional<Error> begin_decision();
  void conclude(const Status& outcome);  // committed, or failed with this error
  [[nodiscard]] std::vector<std::string> torn_tensors() const;
  // Committed or failed for good; the engine lets go of it.
  void retire();

 private:
  [[nodiscard]] bool disowned() const { return facts_->disowned.load(std::memory_order_acquire); }
  [[nodiscard]] double since_save_began() const;
  [[nodiscard]] bool reached(Level level) const { return level_ >= level; }  // needs mutex_
  [[nodiscard]] std::string standing() const;                                // needs mutex_
  // Waits until the sources are released, or (`queued_is_enough`) all copies are queued. False: given up, and a device still holds on
  // to the sources.
  [[nodiscard]] bool wait_for_copies(std::unique_lock<std::mutex>& lock, bool queued_is_enough);
  void give_up_stalled();

  const Spec spec_;
  const std::shared_ptr<SharedFacts> facts_;

  std::atomic<std::uint64_t> staged_bytes_{0};
  std::atomic<std::uint64_t> written_bytes_{0};

  std::mutex cancel_mutex_;  // held while cancel_ runs, so that retire() cannot pull the engine from under it
  std::function<void(Error)> cancel_;

  mutable std::mutex mutex_;  // guards all below
  mutable std::condition_variable changed_;
  Level level_ = Level::kCaptured;
  std::optional<Error> error_;
  std::vector<std::string> torn_tensors_;
  bool released_ = false;
  std::vector<DevicePoint> points_;  // behind all copies of each device, while it is fenced and not yet released
  bool sealed_;
  bool deciding_ = false;
  SnapshotStats stats_;
};

// The error every call gives in a forked child.
[[nodiscard]] Error disowned_error();
// The error of a snapshot whose tensor changed between save() and the fence.
[[nodiscard]] Error torn_error(const std::vector<std::string>& tensors);

}  // namespace slackwater
