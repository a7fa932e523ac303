#include "engine/snapshot_impl.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/units.hpp"

namespace slackwater {

std::string_view to_string(Level level) {
  switch (level) {
    case Level::kCaptured: return "captured";
    case Level::kFenced: return "fenced";
    case Level::kStaged: return "staged";
    case Level::kDurable: return "durable";
    case Level::kCommitted: return "committed";
  }
  return "unknown";
}

Error disowned_error() {
  return Error{.kind = ErrorKind::kClosed,
               .message = "this process was forked from the one that owns the checkpointer; open one of its own here",
               .path = {}};
}

namespace {

double seconds_since(Snapshot::Impl::Instant::time_point began) {
  return std::chrono::duration<double>(Snapshot::Impl::Instant::now() - began).count();
}

std::string standing(const Progress& progress, bool sealed) {
  return fmt::format("it is {}, {} of {} staged, {} written{}", to_string(progress.level),
                     format_bytes(progress.staged_bytes), format_bytes(progress.total_bytes),
                     format_bytes(progress.written_bytes),
                     sealed ? "" : ", and the caller has not confirmed yet that its tensors are unchanged");
}

Error stalled_error(std::chrono::milliseconds stall_timeout) {
  return Error{.kind = ErrorKind::kTimeout,
               .message = fmt::format("storage made no progress for {} while training waited at the fence",
                                      format_seconds(std::chrono::duration<double>(stall_timeout).count())),
               .path = {},
               .retryable = true};
}

// Orders the streams after the points of their devices. False: a device has no stream here, reports an error, or has a
// stream that takes no work because another one is being captured. The caller then waits on the host. A stream that is
// itself being captured is left alone: nothing runs there yet, and each replay of the graph needs a fence of its own.
bool make_streams_wait(std::span<const DevicePoint> points, std::span<const StreamRef> streams) {
  for (const DevicePoint& point : points) {
    bool met = false;
    for (const StreamRef& stream : streams) {
      if (stream.device != point.device->ordinal()) continue;
      const auto status = point.device->capture_status(stream.handle);
      if (!status || *status == CaptureStatus::kImplicit) return false;
      if (*status == CaptureStatus::kNone && !point.device->stream_wait(stream.handle, *point.event)) return false;
      met = true;
    }
    if (!met) return false;
  }
  return true;
}

}  // namespace

Snapshot::Impl::Impl(const Spec& spec, std::shared_ptr<EngineStatus> engine_status)
    : spec_(spec), engine_status_(std::move(engine_status)), verdict_(!spec.sealed_by_caller) {
  stats_.tensor_count = spec.tensor_count;
  stats_.at_once_bytes = spec.at_once_bytes;
  stats_.busy_seconds = spec.busy_seconds;
}

Status Snapshot::Impl::fence(std::span<const StreamRef> streams) {
  if (engine_status_->is_disowned()) return slackwater::fail(disowned_error());
  const auto began = Instant::now();
  hooks_.want_all_queued();
  std::unique_lock lock(mutex_);
  const auto note_time = [&] { stats_.fence_seconds += std::chrono::duration<double>(Instant::now() - began).count(); };
  bool free = wait_for_copies(lock, !streams.empty());
  if (free && !released_) {
    const std::vector<DevicePoint> points = points_;
    lock.unlock();
    const bool ordered = make_streams_wait(points, streams);
    lock.lock();
    if (ordered) {
      ++stats_.device_fences;
      note_time();
      if (verdict_.error()) return slackwater::fail(*verdict_.error());
      return {};
    }
    free = wait_for_copies(lock, false);
  }
  ++stats_.host_fences;
  note_time();
  if (verdict_.error()) return slackwater::fail(*verdict_.error());
  if (!free) return slackwater::fail(stalled_error(spec_.stall_timeout));
  return {};
}

bool Snapshot::Impl::wait_for_copies(std::unique_lock<std::mutex>& lock, bool queued_is_enough) {
  bool given_up = false;
  // Only kFenced itself: once staged, the sources are released a moment later, and no wait on the device is needed.
  while (!released_ && !(queued_is_enough && level_ == Level::kFenced)) {
    const auto deadline = spec_.stall_timeout - engine_status_->still_for();
    if (deadline > Instant::duration::zero()) {
      changed_.wait_for(lock, deadline);
      continue;
    }
    if (given_up) return false;
    // Nothing has moved for too long: training matters more than this snapshot.
    given_up = true;
    lock.unlock();
    hooks_.cancel(stalled_error(spec_.stall_timeout));
    engine_status_->note_progress();  // check again after another full stall_timeout
    lock.lock();
  }
  return true;
}

Status Snapshot::Impl::wait(Level level, std::optional<std::chrono::milliseconds> timeout) {
  if (engine_status_->is_disowned()) return slackwater::fail(disowned_error());
  if (level == Level::kFenced) hooks_.want_all_queued();
  std::unique_lock lock(mutex_);
  const auto over = [&] { return level_ >= level || verdict_.error().has_value(); };
  if (!timeout) {
    changed_.wait(lock, over);
  } else if (!changed_.wait_for(lock, *timeout, over)) {
    return slackwater::fail(
        Error{.kind = ErrorKind::kTimeout,
              .message = fmt::format("step {} is not {} after {}: {}", spec_.step, to_string(level),
                                     format_seconds(std::chrono::duration<double>(*timeout).count()),
                                     standing({.level = level_,
                                               .total_bytes = stats_.total_bytes,
                                               .staged_bytes = staged_bytes_.load(std::memory_order_relaxed),
                                               .written_bytes = written_bytes_.load(std::memory_order_relaxed)},
                                              verdict_.sealed())),
              .path = {},
              .retryable = true});
  }
  // An error after the level was reached (a torn capture found at the commit) still means that the snapshot failed.
  if (verdict_.error()) return slackwater::fail(*verdict_.error());
  return {};
}

bool Snapshot::Impl::wait_released(std::optional<std::chrono::milliseconds> timeout) const {
  if (engine_status_->is_disowned()) return true;
  std::unique_lock lock(mutex_);
  if (!timeout) {
    changed_.wait(lock, [&] { return released_; });
    return true;
  }
  return changed_.wait_for(lock, *timeout, [&] { return released_; });
}

void Snapshot::Impl::seal(std::vector<std::string> torn_tensors, const std::vector<std::string>& freed_tensors) {
  if (engine_status_->is_disowned()) return;
  if (!freed_tensors.empty()) {
    Error error = freed_error(freed_tensors);
    for (const std::string& tensor : freed_tensors)
      if (std::ranges::find(torn_tensors, tensor) == torn_tensors.end()) torn_tensors.push_back(tensor);
    fail_torn(std::move(torn_tensors), std::move(error));
    return;
  }
  if (!torn_tensors.empty()) {
    fail_torn(std::move(torn_tensors));
    return;
  }
  {
    std::lock_guard lock(mutex_);
    verdict_.seal();
  }
  changed_.notify_all();
}

std::optional<Error> Snapshot::Impl::error() const {
  if (engine_status_->is_disowned()) return disowned_error();
  std::lock_guard lock(mutex_);
  return verdict_.error();
}

Progress Snapshot::Impl::progress() const {
  if (engine_status_->is_disowned()) return {};
  std::lock_guard lock(mutex_);
  return Progress{.level = level_,
                  .failed = verdict_.error().has_value(),
                  .total_bytes = stats_.total_bytes,
                  .staged_bytes = staged_bytes_.load(std::memory_order_relaxed),
                  .written_bytes = written_bytes_.load(std::memory_order_relaxed)};
}

SnapshotStats Snapshot::Impl::stats() const {
  if (engine_status_->is_disowned()) return {};
  std::lock_guard lock(mutex_);
  return stats_;
}

std::string Snapshot::Impl::part() const {
  if (engine_status_->is_disowned()) return {};
  std::lock_guard lock(mutex_);
  return part_;
}

void Snapshot::Impl::set_part(std::string part) {
  std::lock_guard lock(mutex_);
  part_ = std::move(part);
}

void Snapshot::Impl::finish_save() {
  std::lock_guard lock(mutex_);
  stats_.save_seconds = seconds_since(spec_.save_began);
}

void Snapshot::Impl::set_total(std::uint64_t total_bytes) {
  engine_status_->note_progress();
  std::lock_guard lock(mutex_);
  stats_.total_bytes = total_bytes;
}

void Snapshot::Impl::add_staged(std::uint64_t bytes) {
  staged_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  engine_status_->note_progress();
}

void Snapshot::Impl::add_written(std::uint64_t bytes) {
  written_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  engine_status_->note_progress();
}

void Snapshot::Impl::reach(Level level, std::vector<DevicePoint> points) {
  engine_status_->note_progress();
  {
    std::lock_guard lock(mutex_);
    if (verdict_.error() || level <= level_) return;
    level_ = level;
    switch (level) {
      case Level::kCaptured: break;
      case Level::kFenced:
        points_ = std::move(points);
        stats_.fenced_seconds = seconds_since(spec_.save_began);
        break;
      case Level::kStaged:
        stats_.staged_seconds = seconds_since(spec_.save_began);
        if (stats_.fenced_seconds == 0) stats_.fenced_seconds = stats_.staged_seconds;
        break;
      case Level::kDurable: stats_.durable_seconds = seconds_since(spec_.save_began); break;
      case Level::kCommitted: stats_.committed_seconds = seconds_since(spec_.save_began); break;
    }
  }
  changed_.notify_all();
}

void Snapshot::Impl::release_sources() {
  {
    std::lock_guard lock(mutex_);
    released_ = true;
    points_.clear();
  }
  changed_.notify_all();
}

void Snapshot::Impl::fail(Error error) {
  {
    std::lock_guard lock(mutex_);
    if (!verdict_.fail(std::move(error))) return;
  }
  changed_.notify_all();
}

void Snapshot::Impl::fail_torn(std::vector<std::string> tensors, std::optional<Error> error) {
  if (!error) error = torn_error(tensors);
  // First: whoever sees this snapshot fail may save again, and that capture must know of these tensors.
  if (spec_.at_once_tensors) engine_status_->torn.learn(tensors);
  {
    // Under one lock: if sw-commit finds the snapshot sealed, it must find the error too.
    std::lock_guard lock(mutex_);
    verdict_.fail_torn(std::move(tensors), std::move(*error));
  }
  changed_.notify_all();
}

std::optional<Error> Snapshot::Impl::begin_decision() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return verdict_.ready(); });
  verdict_.begin_decision();
  return verdict_.error();
}

std::optional<Error> Snapshot::Impl::wait_sealed() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return verdict_.ready(); });
  return verdict_.error();
}

void Snapshot::Impl::conclude(const Status& outcome) {
  engine_status_->note_progress();
  {
    std::lock_guard lock(mutex_);
    verdict_.conclude(outcome);
    if (outcome) {
      level_ = Level::kCommitted;
      stats_.committed_seconds = seconds_since(spec_.save_began);
    }
  }
  changed_.notify_all();
}

std::vector<std::string> Snapshot::Impl::torn_tensors() const {
  if (engine_status_->is_disowned()) return {};
  std::lock_guard lock(mutex_);
  return verdict_.torn_tensors();
}

}  // namespace slackwater
