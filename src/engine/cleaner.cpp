#include "engine/cleaner.hpp"

#include <utility>

#include "base/thread.hpp"

namespace slackwater {

Cleaner::Cleaner(std::function<void(Need)> clean_up) : clean_up_(std::move(clean_up)) {}

Cleaner::~Cleaner() { stop(); }

void Cleaner::start() {
  if (thread_.joinable()) return;
  thread_ = start_thread("sw-clean", [this](const std::stop_token& stop) { loop(stop); });
}

void Cleaner::request(Need need) {
  {
    const std::lock_guard lock(mutex_);
    ++requested_;
    if (need == Need::kSpace) need_ = need;
  }
  changed_.notify_all();
}

void Cleaner::run_now() {
  std::unique_lock lock(mutex_);
  const std::uint64_t wanted = ++requested_;
  need_ = Need::kSpace;
  changed_.notify_all();
  changed_.wait(lock, [&] { return done_ >= wanted || stopped_; });
}

bool Cleaner::wait_idle(std::optional<std::chrono::steady_clock::time_point> deadline) {
  std::unique_lock lock(mutex_);
  const auto idle = [&] { return done_ >= requested_ || stopped_; };
  if (deadline) return changed_.wait_until(lock, *deadline, idle);
  changed_.wait(lock, idle);
  return true;
}

std::unique_lock<std::mutex> Cleaner::hold() {
  static_cast<void>(wait_idle({}));
  return std::unique_lock(running_);
}

void Cleaner::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
  thread_.request_stop();
  if (thread_.joinable()) thread_.join();
}

void Cleaner::loop(const std::stop_token& stop) {
  while (true) {
    std::uint64_t serving = 0;
    Need need = Need::kOrder;
    {
      std::unique_lock lock(mutex_);
      if (!changed_.wait(lock, stop, [&] { return requested_ > done_; }) || stop.stop_requested()) return;
      serving = requested_;
      need = std::exchange(need_, Need::kOrder);
    }
    {
      const std::lock_guard running(running_);
      clean_up_(need);
    }
    {
      const std::lock_guard lock(mutex_);
      done_ = serving;
    }
    changed_.notify_all();
  }
}

}  // namespace slackwater
