#include "sim/compute_engine.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

#include "sim/device.hpp"
#include "sim/simulator.hpp"

namespace slackwater::sim {

void ComputeEngine::add(OpPtr op) {
  ready_.push_back(std::move(op));
  changed_.notify_all();
}

bool ComputeEngine::ends_later(const Running& a, const Running& b) {
  return std::tie(a.ends_at, a.op->sequence) > std::tie(b.ends_at, b.op->sequence);
}

void ComputeEngine::run() {
  std::unique_lock lock(simulator_.mutex);
  while (!simulator_.stopping) {
    if (!ready_.empty()) {
      start(lock);
    } else if (running_.empty()) {
      changed_.wait(lock, [this] { return simulator_.stopping || !ready_.empty(); });
    } else if (device_.failed() || running_.front().ends_at <= Clock::now()) {
      end_first(lock);
    } else {
      changed_.wait_until(lock, running_.front().ends_at,
                          [this] { return simulator_.stopping || !ready_.empty() || device_.failed(); });
    }
  }
}

void ComputeEngine::start(std::unique_lock<std::mutex>& lock) {
  OpPtr op = std::move(ready_.front());
  ready_.pop_front();
  if (!device_.failed()) {
    lock.unlock();
    const cuda::CUresult started = op->work->begin();
    lock.lock();
    if (started != cuda::CUresult::kSuccess) device_.fail(started);
  }
  const Duration duration = op->copy_bytes == 0 ? op->duration
                                                : transfer_time(op->copy_bytes, device_.config.d2d_bytes_per_s,
                                                                device_.config.copy_latency_ns);
  running_.push_back({op->ready_at + duration, std::move(op)});
  std::ranges::push_heap(running_, ends_later);
}

void ComputeEngine::end_first(std::unique_lock<std::mutex>& lock) {
  std::ranges::pop_heap(running_, ends_later);
  const Running ended = std::move(running_.back());
  running_.pop_back();
  if (!device_.failed()) {
    lock.unlock();
    const cuda::CUresult result = ended.op->work->finish();
    lock.lock();
    if (result != cuda::CUresult::kSuccess) device_.fail(result);
  }
  simulator_.schedule.complete(ended.op, std::min(ended.ends_at, Clock::now()));
}

}  // namespace slackwater::sim
