// StoreAccess: the version store and the locks around it. The store takes one caller at a time, except for the calls
// that version_store.hpp names. close() destroys the store. So a thread that close() does not join first (the
// trainer's) checks InFlight::usable() again once it holds a lock.
// Owned by EngineShared. Thread rule: thread-safe. Both locks are taken after Cleaner::hold() and before InFlight's.
#pragma once

#include <memory>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include "base/result.hpp"
#include "engine/in_flight.hpp"
#include "version/version_store.hpp"

namespace slackwater {

class StoreAccess {
 public:
  explicit StoreAccess(std::unique_ptr<VersionStore> store) : store_(std::move(store)) {}

  // For sw-plan and sw-commit: `call` has the store to itself.
  template <class Call>
  auto alone(const Call& call) -> decltype(call(std::declval<VersionStore&>())) {
    std::lock_guard lock(mutex_);
    return call(*store_);
  }
  // For the trainer's thread: lists the versions, or returns kClosed.
  [[nodiscard]] Result<Catalog> scan(const InFlight& jobs) {
    std::lock_guard lock(mutex_);
    SW_TRY(jobs.usable());  // close() may have destroyed the store meanwhile
    return store_->scan();
  }

  // For calls that may run beside a commit. The trainer's thread first takes keep_alive() and checks usable().
  [[nodiscard]] VersionStore& beside_commits() { return *store_; }
  [[nodiscard]] std::shared_lock<std::shared_mutex> keep_alive() { return std::shared_lock(alive_); }

  // For close(): whether the store is in use, and its end once the engine's threads are joined.
  [[nodiscard]] bool busy() {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    const std::unique_lock alone(alive_, std::try_to_lock);
    return !lock.owns_lock() || !alone.owns_lock();
  }
  void close() {
    std::lock_guard lock(mutex_);
    std::lock_guard alone(alive_);
    store_.reset();
  }

 private:
  std::mutex mutex_;
  std::shared_mutex alive_;  // shared: calls beside a commit; exclusive: close() of the store
  std::unique_ptr<VersionStore> store_;
};

}  // namespace slackwater
