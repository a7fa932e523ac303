#include "engine/memory_tier_flush.hpp"

#include <algorithm>
#include <exception>
#include <system_error>
#include <thread>
#include <utility>

#include "base/result.hpp"
#include "base/thread.hpp"

namespace slackwater {

struct MemoryTierFlush::Run {
  std::vector<RankPart> parts;
  std::string member;
  OnCommitted on_committed;
  PublishGate gate;
  bool ended = false;   // guarded by MemoryTierFlush::mutex_
  std::jthread thread;  // started last
};

MemoryTierFlush::MemoryTierFlush(FileSystem& fs, const Clock& clock, std::string root, Log log)
    : fs_(fs), clock_(clock), root_(std::move(root)), log_(std::move(log)) {}

MemoryTierFlush::~MemoryTierFlush() { stop(); }

void MemoryTierFlush::begin(std::vector<RankPart> parts, std::string member, OnCommitted on_committed) {
  give_up("another step is restored");
  const auto run = std::make_shared<Run>();
  run->parts = std::move(parts);
  run->member = std::move(member);
  run->on_committed = std::move(on_committed);
  std::unique_lock lock(mutex_);
  if (stopped_) return;
  const auto body = [this, self = run.get(), earlier = runs_](const std::stop_token&) {
    {
      std::unique_lock wait(mutex_);
      changed_.wait(wait, [&] { return !self->gate.open() || std::ranges::all_of(earlier, &Run::ended); });
    }
    Result<Manifest> flushed;
    try {
      flushed = flush_version(fs_, clock_, root_, self->parts, self->member, self->gate, log_);
      if (flushed) self->on_committed(*flushed);
    } catch (const std::exception& trouble) {
      flushed = fail(ErrorKind::kOutOfMemory, trouble.what());
    }
    const std::uint64_t step = self->parts.front().version.name.step;
    if (flushed) log_.info("step {}, which was restored from memory, is committed", step);
    const std::lock_guard done(mutex_);
    self->parts.clear();  // unmaps the memory of other ranks
    self->ended = true;
    changed_.notify_all();
    if (current_.get() != self) return;  // given up
    if (!flushed) {
      error_ = flushed.error();
      log_.error("step {} was restored from memory and could not be written: {}", step, error_->to_string());
    }
    current_.reset();
  };
  error_.reset();
  try {
    runs_.push_back(run);
    current_ = run;
    run->thread = start_thread("sw-flush", body);
  } catch (const std::system_error& trouble) {
    runs_.pop_back();
    current_.reset();
    error_ = Error{.kind = ErrorKind::kOutOfMemory, .message = trouble.what()};
    log_.error("there is no thread to write the step that was restored from memory: {}", trouble.what());
  }
}

void MemoryTierFlush::refuse(std::uint64_t step, Error error) {
  give_up("another step is restored");
  log_.error("step {} was restored from memory and cannot be written: {}", step, error.to_string());
  const std::lock_guard lock(mutex_);
  error_ = std::move(error);
}

bool MemoryTierFlush::wait(Deadline deadline) {
  std::unique_lock lock(mutex_);
  const auto ended = [&] { return current_ == nullptr; };
  if (deadline) return changed_.wait_until(lock, *deadline, ended);
  changed_.wait(lock, ended);
  return true;
}

void MemoryTierFlush::give_up(const char* why) {
  std::shared_ptr<Run> run;
  {
    const std::lock_guard lock(mutex_);
    run = current_;
  }
  if (!run) return;
  run->gate.close();  // without the lock: it waits for a decision that is being written
  const std::lock_guard lock(mutex_);
  if (current_ != run) return;  // that decision was the end of it
  error_ = Error{.kind = ErrorKind::kTimeout, .message = why, .path = root_, .retryable = true};
  current_.reset();
  changed_.notify_all();
}

void MemoryTierFlush::stop() {
  give_up("it was not written in time");
  std::vector<std::shared_ptr<Run>> runs;
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    runs.swap(runs_);
  }
  for (const auto& run : runs)
    if (run->thread.joinable()) run->thread.join();
}

std::optional<Error> MemoryTierFlush::error() const {
  const std::lock_guard lock(mutex_);
  return error_;
}

}  // namespace slackwater
