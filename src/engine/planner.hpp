// Planner: finds out what must be known before bytes move: the attempt, the version's directory, the layout, the index.
// Then it launches the copies. It has a thread of its own (sw-plan), so that the trainer's thread makes no file-system
// call.
// Owned by Engine::Impl. Thread rule: start() with InFlight's lock held, stop() from close(). All other functions and
// the state belong to sw-plan.
// Lifetime: stopped before the pipeline and sw-commit.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <thread>
#include <utility>

#include "engine/engine_shared.hpp"
#include "engine/pipeline_maker.hpp"
#include "engine/sampler.hpp"
#include "tiers/free_space_watch.hpp"

namespace slackwater {

class Planner {
 public:
  Planner(EngineShared& shared, PipelineMaker& pipelines) : shared_(shared), pipelines_(pipelines) {}

  void start();  // idempotent; throws std::system_error, as start_thread() does
  void stop();

 private:
  void loop(const std::stop_token& stop);
  [[nodiscard]] Status plan(const std::shared_ptr<SaveJob>& job, const std::stop_token& stop);
  [[nodiscard]] Status ensure_attempt(SaveJob& job, const std::stop_token& stop);
  [[nodiscard]] Promotions::Survey survey_below(LiveVersions::Start& start);
  [[nodiscard]] Status add_unseen(VersionStore& versions, LiveVersions::Start& start);
  [[nodiscard]] Status keep_restored(const LiveVersions::Start& start) const;
  [[nodiscard]] Status take_place(SaveJob& job) const;
  [[nodiscard]] Status make_index(SaveJob& job) const;
  void watch_free_space(std::uint64_t own_bytes);
  [[nodiscard]] Result<Attempt> accept(VersionStore& versions, std::uint32_t number, const std::string& text,
                                       const LiveVersions::Start& start);
  [[nodiscard]] Status plan_kept(const std::shared_ptr<SaveJob>& job) const;
  [[nodiscard]] KeptPlan kept_plan(const std::shared_ptr<SaveJob>& job) const;

  EngineShared& shared_;
  PipelineMaker& pipelines_;
  const Options& options_ = shared_.options;
  const Log& log_ = shared_.log;
  CommitProtocol* const protocol_ = shared_.protocol.get();
  InFlight& jobs_ = shared_.jobs;
  Guarded<LiveVersions>& live_ = shared_.live;
  CleanerThread& cleaner_ = shared_.cleaner;

  std::optional<std::pair<std::uint64_t, Attempt>> claimed_;  // epoch and attempt; the other ranks may not know it yet

  FreeSpaceWatch space_{options_.keep, options_.in_flight, shared_.promotions.most_held()};

  Sampler sampler_{shared_};
  std::jthread thread_;  // started last
};

}  // namespace slackwater
