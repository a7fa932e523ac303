#include "sim/copy_engine.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

#include "sim/device.hpp"
#include "sim/simulator.hpp"

namespace slackwater::sim {

CopyEngine::CopyEngine(Simulator& simulator, Device& device, EngineKind kind)
    : simulator_(simulator), device_(device), kind_(kind) {}

void CopyEngine::add(OpPtr op) {
  ready_.push_back(std::move(op));
  changed_.notify_all();
}

void CopyEngine::run() {
  std::unique_lock lock(simulator_.mutex);
  for (;;) {
    changed_.wait(lock, [this] {
      return simulator_.stopping || (!ready_.empty() && (device_.stall != SWSIM_STALL_ON || device_.failed()));
    });
    if (simulator_.stopping) return;
    const OpPtr op = take_first();
    if (device_.failed()) {
      simulator_.schedule.complete(op, Clock::now());
    } else {
      copy(lock, *op);
      simulator_.schedule.complete(op, free_at_);
    }
  }
}

void CopyEngine::wake() {
  changed_.notify_all();
  begun_.notify_all();
}

bool CopyEngine::wait_begun(std::unique_lock<std::mutex>& lock, std::uint64_t copies) {
  begun_.wait(lock, [&] { return stats_.begun >= copies || device_.failed() || simulator_.stopping; });
  return stats_.begun >= copies;
}

OpPtr CopyEngine::take_first() {
  const bool obeys = device_.config.copy_priorities != 0;
  const auto first = std::ranges::min_element(ready_, {}, [this, obeys](const OpPtr& op) {
    const int rank = obeys ? op->priority : static_cast<int>(op->stream != last_stream_);
    return std::tuple(rank, op->ready_at, op->sequence);
  });
  OpPtr op = std::move(*first);
  ready_.erase(first);
  last_stream_ = op->stream;
  return op;
}

Duration CopyEngine::duration_of(const Op& op) const {
  const swsim_device_config& config = device_.config;
  const std::uint64_t pinned = kind_ == EngineKind::kDeviceToHost ? config.d2h_bytes_per_s : config.h2d_bytes_per_s;
  return transfer_time(op.copy_bytes, op.pageable ? config.pageable_bytes_per_s : pinned, config.copy_latency_ns);
}

void CopyEngine::copy(std::unique_lock<std::mutex>& lock, Op& op) {
  const Duration duration = duration_of(op);
  const cuda::CUresult fault = device_.take_copy_fault();
  const bool flip = kind_ == EngineKind::kDeviceToHost && device_.take_flip();
  const TimePoint begun = Clock::now();
  TimePoint deadline = std::max({free_at_, op.ready_at, device_.released_at}) + duration;
  lock.unlock();
  const cuda::CUresult started = op.work->begin();
  lock.lock();
  ++stats_.begun;
  begun_.notify_all();
  if (started != cuda::CUresult::kSuccess) device_.fail(started);
  const bool arrived = sleep_until(lock, deadline);
  if (arrived && fault != cuda::CUresult::kSuccess) device_.fail(fault);
  if (arrived && !device_.failed()) {
    lock.unlock();
    const cuda::CUresult ended = op.work->finish();
    if (flip && ended == cuda::CUresult::kSuccess) op.work->spoil_a_byte(op.sequence);
    lock.lock();
    if (ended == cuda::CUresult::kSuccess) {
      stats_.bytes += op.copy_bytes;
    } else {
      device_.fail(ended);
    }
  }
  ++stats_.copies;
  // At memcpy speed, a copy takes as long as it really took.
  const TimePoint now = Clock::now();
  const Duration real = std::chrono::duration_cast<Duration>(now - begun);
  stats_.busy_ns += static_cast<std::uint64_t>((duration.count() > 0 ? duration : real).count());
  free_at_ = arrived && duration.count() > 0 ? deadline : now;
}

bool CopyEngine::sleep_until(std::unique_lock<std::mutex>& lock, TimePoint& deadline) {
  const auto ended = [this] { return simulator_.stopping || device_.failed(); };
  const auto stalled = [this] { return device_.stall != SWSIM_STALL_OFF; };
  while (changed_.wait_until(lock, deadline, [&] { return ended() || stalled(); })) {
    if (ended()) return false;
    const Duration left = std::max(Duration(0), std::chrono::duration_cast<Duration>(deadline - Clock::now()));
    changed_.wait(lock, [&] { return ended() || !stalled(); });
    deadline = device_.released_at + left;
  }
  return true;
}

}  // namespace slackwater::sim
