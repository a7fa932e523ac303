#include "tiers/promoter.hpp"

#include <algorithm>
#include <exception>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "base/thread.hpp"
#include "tiers/tier_leader.hpp"
#include "tiers/tier_member.hpp"

namespace slackwater {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFirstRetry{250};
constexpr milliseconds kLastRetry{15'000};
constexpr milliseconds kFirstPoll{20};  // for the work of other ranks
constexpr milliseconds kLastPoll{2'000};

std::unique_ptr<TierWorker> make_worker(const TierWork& work) {
  if (work.rank == 0) return std::make_unique<TierLeader>(work);
  return std::make_unique<TierMember>(work);
}

}  // namespace

Promoter::Promoter(const Tier& tier, const PromotionSource& source, unsigned number)
    : tier_(tier),
      thread_name_(fmt::format("sw-promote-{}", number)),
      backlog_(tier_.options(), tier_.root(), source.log, source.on_released,
               [this] { return tier_.fs().accepted_bytes() + cap_.pauses(); }),
      cap_(tier_.options().bandwidth_bytes),
      worker_(make_worker({.tier = tier_,
                           .local = source.local,
                           .local_root = source.root,
                           .clock = source.clock,
                           .log = source.log,
                           .backlog = backlog_,
                           .cap = cap_,
                           .rank = source.rank,
                           .world = source.world,
                           .direct_io = source.direct_io,
                           .buffer_bytes = source.buffer_bytes,
                           .leads_node = source.leads_node,
                           .number = number,
                           .deletes_heard = deletes_heard_})) {}

Promoter::~Promoter() { stop(); }

void Promoter::start() {
  if (thread_.joinable()) return;
  thread_ = start_thread(thread_name_, [this](const std::stop_token& stop) { loop(stop); });
}

void Promoter::stop() {
  thread_.request_stop();
  if (!thread_.joinable()) return;
  tier_.fs().stop_transfers();  // a request over a slow network ends at once, and the next run continues
  thread_.join();
  worker_->stop();  // behind it: the thread may just have started the cleaner
}

std::optional<TierInventory> Promoter::wait_inventory(std::chrono::steady_clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  inventory_changed_.wait_until(lock, deadline, [&] { return inventory_taken_; });
  return inventory_;
}

void Promoter::hear_deletes(const std::vector<DeleteNote>& notes) {
  const auto heard = deletes_heard_.lock();
  *heard = notes;
  std::erase_if(*heard, [this](const DeleteNote& note) { return note.tier != noted_location(tier_.root()); });
}

void Promoter::list_tier() {
  Result<TierInventory> found;
  try {
    found = worker_->inventory();
  } catch (const std::exception& trouble) {
    found = fail(ErrorKind::kOutOfMemory, fmt::format("the tier cannot be listed: {}", trouble.what()), tier_.root());
  }
  if (!found) backlog_.note_error(found.error());
  {
    const std::lock_guard lock(mutex_);
    inventory_taken_ = true;
    if (found) inventory_ = std::move(*found);
  }
  inventory_changed_.notify_all();
}

void Promoter::loop(const std::stop_token& stop) {
  lower_priority();
  list_tier();
  milliseconds retry = kFirstRetry;
  std::optional<milliseconds> poll;  // none: nothing to do until there are news
  while (!stop.stop_requested()) {
    CopyBacklog::News news = backlog_.wait_news(stop, poll);
    if (stop.stop_requested()) return;
    if (news.attempt) {
      todo_.attempt = std::move(news.attempt);
      todo_.continued = news.continued;
    }
    todo_.removed = std::move(news.removed);
    Result<TierWorker::Outcome> outcome;
    try {
      outcome = work(stop);
    } catch (const std::exception& trouble) {
      outcome = fail(ErrorKind::kOutOfMemory, fmt::format("a copy failed: {}", trouble.what()), tier_.root());
    }
    if (!outcome) {
      if (outcome.error().kind == ErrorKind::kClosed) return;
      // Another run has this tier now. That does not change while this attempt lasts.
      if (outcome.error().kind == ErrorKind::kAborted) {
        backlog_.refuse(outcome.error());
        todo_.attempt.reset();
        poll.reset();
        continue;
      }
      backlog_.note_error(outcome.error());
      if (!backlog_.pause(stop, retry)) return;
      retry = std::min(2 * retry, kLastRetry);
      poll = kFirstPoll;
      continue;
    }
    retry = kFirstRetry;
    backlog_.note_success();
    switch (*outcome) {
      case TierWorker::Outcome::kIdle: poll.reset(); break;
      case TierWorker::Outcome::kWaiting: poll = poll ? std::min(2 * *poll, kLastPoll) : kFirstPoll; break;
      case TierWorker::Outcome::kWorked: poll = milliseconds(0); break;
    }
  }
}

Result<TierWorker::Outcome> Promoter::work(const std::stop_token& stop) {
  if (todo_.attempt) {
    SW_TRY(worker_->begin_attempt(*todo_.attempt, todo_.continued));
    todo_.attempt.reset();
    begun_ = true;
    const std::lock_guard lock(mutex_);
    inventory_.reset();  // from now on this run changes the tier, and restores see what is there
  }
  // Nothing is written to the tier before this run has an attempt there.
  if (!begun_) return TierWorker::Outcome::kIdle;
  if (!todo_.removed.empty()) SW_TRY(worker_->remove(todo_.removed));
  todo_.removed.clear();
  return worker_->advance(stop);
}

}  // namespace slackwater
