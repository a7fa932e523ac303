#include "engine/repair_thread.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/result.hpp"
#include "base/thread.hpp"
#include "version/attempt_files.hpp"

namespace slackwater {
namespace {

// For the files of other ranks.
constexpr std::chrono::milliseconds kFirstLook{50};
constexpr std::chrono::milliseconds kLastLook{2'000};
constexpr std::chrono::minutes kOtherRanksTimeout{10};

}  // namespace

void RepairThread::add(RepairOrder order, const VersionInfo& version) {
  {
    const std::lock_guard lock(mutex_);
    if (stopped_) return;
    shared_.repairing.lock()->insert(order.version);
    jobs_.push_back({std::move(order), version});
    try {
      if (!thread_.joinable()) thread_ = start_thread("sw-repair", [this](const std::stop_token& stop) { loop(stop); });
    } catch (const std::system_error& trouble) {
      log_.warn("tier 0 is not repaired, because its thread could not be started: {}", trouble.what());
      jobs_.clear();
      shared_.repairing.lock()->clear();
    }
  }
  changed_.notify_all();
}

bool RepairThread::request_stop() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  thread_.request_stop();
  return !running_;
}

void RepairThread::stop() {
  static_cast<void>(request_stop());
  if (thread_.joinable()) thread_.join();
}

void RepairThread::loop(const std::stop_token& stop) {
  lower_priority();
  for (;;) {
    std::optional<Job> job;
    {
      std::unique_lock lock(mutex_);
      if (!changed_.wait(lock, stop, [&] { return !jobs_.empty(); }) || stop.stop_requested()) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
      running_ = true;
    }
    repair(*job, stop);
    {
      const std::lock_guard lock(mutex_);
      running_ = false;
    }
    shared_.repairing.lock()->erase(job->order.version);
    shared_.live.lock()->ask_to_sweep();  // what was copied in vain goes after the next commit
  }
}

void RepairThread::repair(const Job& job, const std::stop_token& stop) {
  Status status;
  try {
    status = copy_and_publish(job, stop);
  } catch (const std::exception& trouble) {
    status = fail(ErrorKind::kOutOfMemory, trouble.what());
  }
  if (!status && status.error().kind != ErrorKind::kClosed)
    log_.warn("step {} could not be repaired on {}; the next restore tries again: {}", job.version.step, options_.path,
              status.error().to_string());
}

Status RepairThread::copy_and_publish(const Job& job, const std::stop_token& stop) {
  const std::uint32_t rank = options_.rank;
  const std::uint32_t world = options_.world;
  VersionRepair repair(
      job.order, {shared_.fs.get(), options_.path},
      [=, this](std::uint32_t saved_by) { return !options_.node_local && saved_by % world == rank; }, log_);
  SW_TRY(repair.copy({.direct_io = options_.direct_io, .stop = stop}));
  if (repair.files_copied() > 0)
    log_.info("step {}: {} missing or damaged on {} came back from a lower tier", job.version.step,
              repair.files_copied() == 1 ? "1 file that was" : fmt::format("{} files that were", repair.files_copied()),
              options_.path);
  // With node_local, the restore has already brought what this node needs, and no node has all files.
  if (rank != 0 || options_.node_local) return {};
  const TimePoint given_up = shared_.clock->now() + kOtherRanksTimeout;
  for (auto look = kFirstLook;; look = std::min(2 * look, kLastLook)) {
    SW_ASSIGN(const bool unpublished, repair.unpublished());
    if (!unpublished) return {};
    // Without keeping the cleaner waiting.
    SW_ASSIGN(const auto missing, repair.missing_rank());
    if (!missing) {
      SW_ASSIGN(const bool done, publish(repair, job));
      if (done) return {};
    }
    if (shared_.clock->now() >= given_up) {
      return fail(ErrorKind::kTimeout,
                  missing ? fmt::format("rank {} has not copied its part", *missing)
                          : std::string("files of it are gone again"),
                  options_.path);
    }
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, stop, look, [] { return false; });
    if (stop.stop_requested()) return {};
  }
}

// While nobody deletes on tier 0: a version that is not complete looks like what a crash left behind. Only tier 0 is
// touched here: a claim, and a save that needs room, wait for the cleaner.
Result<bool> RepairThread::publish(VersionRepair& repair, const Job& job) {
  const auto nobody_deletes = shared_.cleaner.block_deletes();
  SW_ASSIGN(const std::optional<std::string> why, why_not(job));
  if (why) {
    log_.info("step {} is not put back on {}: {}", job.version.step, options_.path, *why);
    return true;
  }
  SW_ASSIGN(const bool published, repair.publish());
  if (!published) return false;
  shared_.live.lock()->add_repaired(job.version);
  log_.info("step {} was repaired on {}", job.version.step, options_.path);
  return true;
}

Result<std::optional<std::string>> RepairThread::why_not(const Job& job) const {
  // Put back, it would be live again, and the notes that tell the lower tiers to delete it would be void.
  if (shared_.deleted.lock()->contains(job.order.version)) return std::optional<std::string>("it was deleted");
  const std::optional<Attempt> attempt = shared_.live.lock()->attempt();
  SW_TRY(check_newest_attempt(*shared_.fs, options_.path, attempt ? attempt->number : job.order.newest_attempt));
  if (attempt && job.order.version.attempt != attempt->number &&
      !std::ranges::binary_search(attempt->adopted, job.order.version))
    return std::optional<std::string>("it is not live any more");
  std::vector<VersionInfo> live = shared_.live.lock()->list();
  if (std::ranges::find(live, job.order.version, name_of) == live.end()) live.push_back(job.version);
  std::ranges::sort(live, {}, name_of);
  const std::vector<VersionName> gone = expired(live, shared_.retention);
  if (std::ranges::find(gone, job.order.version) != gone.end())
    return std::optional<std::string>("retention would delete it again");
  return std::optional<std::string>();
}

}  // namespace slackwater
