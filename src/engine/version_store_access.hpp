// VersionStoreAccess: the version store and the locks around it. The store takes one caller at a time, except for the
// calls that version_store.hpp names. close() destroys the store. So a thread that close() does not join first (the
// trainer's) checks InFlight::usable() again once it holds a lock.
// Owned by EngineShared. Thread rule: thread-safe. Both locks are taken after CleanerThread::block_deletes() and before
// those of InFlight.
#pragma once

#include <memory>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include "base/result.hpp"
#include "engine/in_flight.hpp"
#include "version/version_store.hpp"

namespace slackwater {

class VersionStoreAccess {
 public:
  explicit VersionStoreAccess(std::unique_ptr<VersionStore> store) : store_(std::move(store)) {}

  // False for an engine without a directory. Before close() only.
  [[nodiscard]] bool exists() const { return store_ != nullptr; }

  // For sw-plan and sw-commit: `call` has the store to itself.
  template <class Call>
  auto exclusive(const Call& call) -> decltype(call(std::declval<VersionStore&>())) {
    std::lock_guard lock(mutex_);
    return call(*store_);
  }
  // For the trainer's thread: lists the versions, or returns kClosed.
  [[nodiscard]] Result<Catalog> scan(const InFlight& jobs) {
    std::lock_guard lock(mutex_);
    SW_TRY(jobs.usable());  // close() may have destroyed the store before this call got the lock
    return store_->scan();
  }

  // For calls that may run during a commit (version_store.hpp). The trainer's thread must first call keep_open() and
  // then check usable().
  [[nodiscard]] VersionStore& without_lock() { return *store_; }
  [[nodiscard]] std::shared_lock<std::shared_mutex> keep_open() { return std::shared_lock(open_mutex_); }

  // For close(): whether the store is in use, and its end once the engine's threads are joined.
  [[nodiscard]] bool busy() {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    const std::unique_lock nobody_inside(open_mutex_, std::try_to_lock);
    return !lock.owns_lock() || !nobody_inside.owns_lock();
  }
  void close() {
    std::lock_guard lock(mutex_);
    std::lock_guard nobody_inside(open_mutex_);
    store_.reset();
  }

 private:
  std::mutex mutex_;
  std::shared_mutex open_mutex_;  // shared: calls without mutex_; exclusive: close() of the store
  std::unique_ptr<VersionStore> store_;
};

}  // namespace slackwater
