#include "tiers/copy_backlog.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"

namespace slackwater {
namespace {

constexpr std::chrono::milliseconds kProgressPoll{200};  // nobody tells when a byte has moved

}  // namespace

CopyBacklog::CopyBacklog(const TierOptions& options, std::string location, Log log, std::function<void()> on_released,
                         Progress progress)
    : options_(options),
      location_(std::move(location)),
      log_(std::move(log)),
      on_released_(std::move(on_released)),
      progress_(progress ? std::move(progress) : [] { return std::uint64_t{0}; }) {
  status_.location = location_;
}

void CopyBacklog::begin_attempt(const Attempt& attempt, std::optional<std::uint64_t> continued) {
  {
    const std::lock_guard lock(mutex_);
    attempt_ = attempt;
    continued_ = continued;
    attempt_is_news_ = true;
    refused_.reset();
    // Not bounded here: these versions are on tier 0 already, and some of them may be on this tier. The promoter finds
    // out which.
    waiting_.clear();
    std::ranges::copy_if(attempt.adopted, std::inserter(waiting_, waiting_.end()),
                         [&](const VersionName& version) { return version.step % options_.every == 0; });
    ++changes_;
  }
  changed_.notify_all();
}

void CopyBacklog::add(const VersionName& version) {
  if (version.step % options_.every != 0) return;
  std::vector<VersionName> skipped;
  {
    const std::lock_guard lock(mutex_);
    if (attempt_ && version.attempt != attempt_->number) return;  // a restore came in between
    if (refused_) {
      ++status_.skipped;
      return;
    }
    waiting_.insert(version);
    trim(skipped);
    ++changes_;
  }
  changed_.notify_all();
  log_skipped(skipped);
}

void CopyBacklog::trim(std::vector<VersionName>& skipped) {
  // The one that is being copied does not wait any more.
  const auto beyond = [&] { return waiting_.size() - (copying_ && waiting_.contains(*copying_) ? 1 : 0); };
  for (auto oldest = waiting_.begin(); oldest != waiting_.end() && beyond() > options_.backlog;) {
    if (copying_ == *oldest) {
      ++oldest;
      continue;
    }
    skipped.push_back(*oldest);
    oldest = waiting_.erase(oldest);
    ++status_.skipped;
  }
}

void CopyBacklog::log_skipped(const std::vector<VersionName>& skipped) const {
  for (const VersionName& version : skipped) {
    log_.warn(
        "step {} will not be copied to {}: {} newer checkpoints are already waiting (backlog); the tier is too slow "
        "for `every`",
        version.step, location_, options_.backlog);
  }
}

void CopyBacklog::remove(const DeleteNote& deleted) {
  {
    const std::lock_guard lock(mutex_);
    waiting_.erase(deleted.version);
    if (!refused_) removed_.insert(deleted);  // nothing is deleted on a tier that another run uses
    ++changes_;
  }
  changed_.notify_all();
}

std::set<VersionName> CopyBacklog::held() const {
  const std::lock_guard lock(mutex_);
  return waiting_;
}

TierStatus CopyBacklog::status() const {
  const std::lock_guard lock(mutex_);
  TierStatus status = status_;
  for (const VersionName& version : waiting_) status.waiting.push_back(version.step);
  if (copying_) status.copying = copying_->step;
  if (status.last_error.empty()) status.last_error = clean_error_;
  return status;
}

std::vector<DeleteNote> CopyBacklog::removing() const {
  const std::lock_guard lock(mutex_);
  return {removed_.begin(), removed_.end()};
}

std::optional<Error> CopyBacklog::refusal() const {
  const std::lock_guard lock(mutex_);
  return refused_;
}

bool CopyBacklog::wait_idle(std::optional<std::chrono::steady_clock::time_point> deadline,
                            std::chrono::milliseconds idle_limit) const {
  std::unique_lock lock(mutex_);
  const auto idle = [&] {
    return waiting_.empty() && removed_.empty() && !working_ && !cleaning_ && changes_ == seen_;
  };
  auto moved_at = std::chrono::steady_clock::now();
  std::uint64_t moves = moves_;
  std::uint64_t progress = progress_();
  while (!idle()) {
    const auto now = std::chrono::steady_clock::now();
    const std::uint64_t progress_now = progress_();
    if (std::exchange(moves, moves_) != moves_ || (progress_now != progress && !failed_)) moved_at = now;
    progress = progress_now;
    auto until = moved_at + idle_limit;
    if (deadline) until = std::min(until, *deadline);
    if (now >= until) return false;
    changed_.wait_until(lock, std::min(until, now + kProgressPoll), [&] { return idle() || moves_ != moves; });
  }
  return true;
}

CopyBacklog::News CopyBacklog::wait_news(const std::stop_token& stop, std::optional<std::chrono::milliseconds> pause) {
  std::unique_lock lock(mutex_);
  const auto has_news = [&] { return changes_ != seen_; };
  if (!has_news() && pause != std::chrono::milliseconds(0)) {
    working_ = false;
    changed_.notify_all();
  }
  if (pause) {
    changed_.wait_for(lock, stop, *pause, has_news);
  } else {
    changed_.wait(lock, stop, has_news);
  }
  seen_ = changes_;
  working_ = !stop.stop_requested();
  News news;
  if (std::exchange(attempt_is_news_, false)) {
    news.attempt = attempt_;
    news.continued = continued_;
  }
  news.removed.assign(removed_.begin(), removed_.end());
  return news;
}

std::vector<VersionName> CopyBacklog::waiting() const {
  const std::lock_guard lock(mutex_);
  return {waiting_.rbegin(), waiting_.rend()};
}

void CopyBacklog::begin_copy(const VersionName& version) {
  const std::lock_guard lock(mutex_);
  copying_ = version;
}

void CopyBacklog::end_copy() {
  const std::lock_guard lock(mutex_);
  copying_.reset();
}

void CopyBacklog::finish(const VersionName& version) {
  {
    const std::lock_guard lock(mutex_);
    waiting_.erase(version);
    if (copying_ == version) copying_.reset();
    ++moves_;
    failed_ = false;
    status_.newest_step = std::max(status_.newest_step.value_or(0), version.step);
  }
  changed_.notify_all();
  on_released_();
}

void CopyBacklog::skip(const VersionName& version, const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    ++status_.skipped;
  }
  log_.warn("step {} will not be copied to {}: {}", version.step, location_, why);
  forget(version);
}

void CopyBacklog::forget(const VersionName& version) {
  {
    const std::lock_guard lock(mutex_);
    waiting_.erase(version);
    std::erase_if(removed_, [&](const DeleteNote& deleted) { return deleted.version == version; });
    if (copying_ == version) copying_.reset();
    ++moves_;
  }
  changed_.notify_all();
  on_released_();
}

void CopyBacklog::note_sent(std::uint64_t size_bytes) {
  {
    const std::lock_guard lock(mutex_);
    status_.sent_bytes += size_bytes;
    ++moves_;
    failed_ = false;
  }
  changed_.notify_all();
}

void CopyBacklog::note_step_on_tier(std::uint64_t step) {
  const std::lock_guard lock(mutex_);
  status_.newest_step = std::max(status_.newest_step.value_or(0), step);
}

void CopyBacklog::note_error(const Error& error) {
  const std::string text = error.to_string();
  {
    const std::lock_guard lock(mutex_);
    ++status_.errors;
    failed_ = true;
    if (std::exchange(status_.last_error, text) == text) return;
  }
  log_.warn("copying to {} failed and will be retried: {}", location_, text);
}

void CopyBacklog::refuse(const Error& error) {
  note_error(error);
  {
    const std::lock_guard lock(mutex_);
    refused_ = error;
    status_.skipped += waiting_.size();
    waiting_.clear();
    removed_.clear();
    copying_.reset();
    ++moves_;
  }
  changed_.notify_all();
  on_released_();
}

bool CopyBacklog::pause(const std::stop_token& stop, std::chrono::milliseconds time) {
  std::unique_lock lock(mutex_);
  working_ = false;
  changed_.notify_all();
  changed_.wait_for(lock, stop, time, [] { return false; });
  return !stop.stop_requested();
}

void CopyBacklog::set_cleaning(bool cleaning) {
  {
    const std::lock_guard lock(mutex_);
    cleaning_ = cleaning;
  }
  changed_.notify_all();
}

void CopyBacklog::note_clean_up(const Status& done) {
  const std::string text = done ? std::string() : done.error().to_string();
  {
    const std::lock_guard lock(mutex_);
    if (!done) ++status_.errors;
    if (std::exchange(clean_error_, text) == text) return;
  }
  if (!done) {
    log_.warn("deleting old checkpoints on {} failed and will be retried; copies go on: {}", location_, text);
  } else {
    log_.info("deleting on {} works again", location_);
  }
}

void CopyBacklog::note_success() {
  {
    const std::lock_guard lock(mutex_);
    failed_ = false;
    if (status_.last_error.empty()) return;
    status_.last_error.clear();
    ++moves_;
  }
  changed_.notify_all();
  log_.info("copying to {} works again", location_);
}

}  // namespace slackwater
