// Engine::Impl: the composition root. It owns the parts and what they share, and starts and stops their threads:
//   Saver          save(), on the trainer's thread
//   PipelineMaker  the pool, when its size is known
//   Planner        sw-plan: what must be known before bytes move
//   Sampler        sw-sample: first samples of tensors on devices (the Planner has it)
//   Committer      sw-commit: sync, record, decision
//   Restorer       restore(), on the trainer's thread
//   RepairThread   sw-repair: copies to tier 0 what it lacks of the restored version (the Restorer has it)
//   CleanerThread  sw-clean: deletes old versions, on rank 0 and on one rank of each other node (node_local)
//   Promotions     sw-promote-N: copy committed versions to lower tiers
//   MemoryTier     sw-memory, sw-flush: the newest versions, in a keeper's memory
//   SkipThread     sw-turn: which steps are saved, if several ranks skip some
// Thread rule: as Engine. docs/threading.md has the order of locks.
// Lifetime: the parts end before what they share.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/fork_guard.hpp"
#include "engine/committer.hpp"
#include "engine/engine_shared.hpp"
#include "engine/pipeline_maker.hpp"
#include "engine/planner.hpp"
#include "engine/restorer.hpp"
#include "engine/saver.hpp"
#include "slackwater/engine.hpp"

namespace slackwater {

[[nodiscard]] Result<Engine> open_engine(Options options, EngineDependencies parts);

class Engine::Impl {
 public:
  Impl(Options options, EngineDependencies parts, std::unique_ptr<VersionStore> versions, const Catalog& catalog,
       Log log);
  ~Impl();  // after close()

  Result<std::optional<Snapshot>> save(std::uint64_t step, State state);
  Result<std::optional<Restored>> restore(const RestoreOptions& options, const Plan& plan);
  Status prepare(State state) { return pipeline_maker_.prepare(std::move(state)); }
  Result<bool> wait_prepared(std::chrono::milliseconds timeout) { return pipeline_maker_.wait_touched(timeout); }
  Status wait(Level level, std::optional<std::chrono::milliseconds> timeout);
  Status wait_copied(std::optional<std::chrono::milliseconds> timeout);
  Status fence(std::span<const StreamRef> streams);
  [[nodiscard]] std::vector<VersionInfo> versions() const;
  Status pin(std::uint64_t step);
  Status remove(std::uint64_t step);
  [[nodiscard]] std::optional<Error> background_error() const;
  [[nodiscard]] EngineStats stats() const;
  [[nodiscard]] std::vector<TierStatus> tiers() const { return shared_.promotions.status(); }
  void keep_memory() {
    if (shared_.memory && !disowned()) shared_.memory->keep_after_close();
  }
  Status close(std::optional<std::chrono::milliseconds> timeout);
  void log_error(const Error& error) const { shared_.log.error("{}", error.to_string()); }
  [[nodiscard]] bool disowned() const { return shared_.disowned(); }
  // Storage does not respond and threads hang in it. This object cannot be destroyed any more; it is leaked.
  [[nodiscard]] bool stuck() const { return stuck_.load(std::memory_order_acquire); }

 private:
  [[nodiscard]] Status has_directory() const;
  [[nodiscard]] Status start_threads();  // with InFlight's lock held
  [[nodiscard]] Result<VersionName> find_version(std::uint64_t step) const;
  // In close.cpp.
  [[nodiscard]] Status close_once(std::optional<std::chrono::milliseconds> timeout);
  [[nodiscard]] Status wait_closed(std::optional<std::chrono::milliseconds> timeout);
  void shut_down(bool in_time);
  [[nodiscard]] bool shut_down_within(std::chrono::milliseconds grace);

  EngineShared shared_;
  const Options& options_ = shared_.options;
  ForkGuard fork_guard_;
  PipelineMaker pipeline_maker_;
  Planner planner_;
  Committer committer_;
  Saver saver_;
  Restorer restorer_;

  std::mutex close_mutex_;  // guards close_ended_
  std::condition_variable close_changed_;
  bool close_ended_ = false;   // the close() that did the work has ended
  std::jthread close_thread_;  // only when close() ran out of time
  std::atomic<bool> stuck_{false};
};

}  // namespace slackwater
