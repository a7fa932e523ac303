// Promoter: copies committed versions from tier 0 to one lower tier, on a thread of its own (sw-promote-N). It reads
// tier 0 as it is on disk and touches neither the pool nor the trainer, so a slow or dead tier holds up nobody. An
// error is logged when it changes and kept in the status. The work is tried again, with longer and longer pauses.
// Owned by Promotions. Thread rule: thread-safe; start() and stop() belong to the engine.
// Lifetime: what it is given outlives it.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>

#include "base/log.hpp"
#include "os/clock.hpp"
#include "tiers/bandwidth_cap.hpp"
#include "tiers/copy_backlog.hpp"
#include "tiers/tier.hpp"
#include "tiers/tier_inventory.hpp"
#include "tiers/tier_worker.hpp"

namespace slackwater {

// What all promoters of an engine share. Everything referred to outlives them.
struct PromotionSource {
  FileSystem& local;
  std::string root;  // of tier 0
  const Clock& clock;
  const Log& log;
  std::uint32_t rank = 0;
  std::uint32_t world = 1;
  bool direct_io = true;
  std::uint64_t buffer_bytes = 32u << 20;         // for the copies to all tiers together
  const std::atomic<bool>* leads_node = nullptr;  // see TierWork
  std::function<void()> on_released = [] {};      // a version need not be held on tier 0 any more
};

class Promoter {
 public:
  Promoter(const Tier& tier, const PromotionSource& source, unsigned number);
  ~Promoter();

  void start();  // idempotent; throws std::system_error, as start_thread() does
  void stop();   // ends the copy under way soon; the next run continues it

  [[nodiscard]] CopyBacklog& backlog() { return backlog_; }
  [[nodiscard]] const CopyBacklog& backlog() const { return backlog_; }
  [[nodiscard]] const Tier& tier() const { return tier_; }
  // What was on the tier when the thread started. nullopt: it could not be reached, or not by then, or this run has
  // written to it since.
  [[nodiscard]] std::optional<TierInventory> wait_inventory(std::chrono::steady_clock::time_point deadline);
  void hear_deletes(const std::vector<DeleteNote>& notes);  // as Promotions::hear_deletes()

 private:
  void loop(const std::stop_token& stop);
  void list_tier();
  [[nodiscard]] Result<TierWorker::Outcome> work(const std::stop_token& stop);

  const Tier& tier_;
  const std::string thread_name_;
  CopyBacklog backlog_;
  BandwidthCap cap_;
  Guarded<std::vector<DeleteNote>> deletes_heard_;
  const std::unique_ptr<TierWorker> worker_;

  // For the thread only.
  CopyBacklog::News todo_;  // not done yet
  bool begun_ = false;      // an attempt on the tier

  std::mutex mutex_;  // guards what follows
  std::condition_variable inventory_changed_;
  bool inventory_taken_ = false;
  std::optional<TierInventory> inventory_;

  std::jthread thread_;  // started last
};

}  // namespace slackwater
