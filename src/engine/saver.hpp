// Saver: save() on the trainer's thread. It decides whether a step is saved, captures what cannot be captured later,
// and hands a save job to sw-plan. It makes no file-system call. It waits for earlier jobs only if too many are in
// flight.
// Owned by Engine::Impl. Thread rule: one thread, the trainer's. close() may run during save().
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "capture/replica_samples.hpp"
#include "capture/share_replicas.hpp"
#include "engine/engine_shared.hpp"
#include "slackwater/engine.hpp"

namespace slackwater {

class Saver {
 public:
  // `start_threads`: idempotent, called with InFlight's lock held.
  Saver(EngineShared& shared, std::function<Status()> start_threads);

  [[nodiscard]] Result<std::optional<Snapshot>> save(std::uint64_t step, State state);
  void go_on_from(std::uint64_t step) { last_step_ = step; }  // this step was restored

 private:
  using Spec = Snapshot::Impl::Spec;

  [[nodiscard]] Status check_step(std::uint64_t step) const;
  // Captures the state. The job gets only what this rank writes.
  [[nodiscard]] Result<std::shared_ptr<SaveJob>> take(std::uint64_t step, State state);
  // A snapshot that failed before anything of it was under way. kClosed, and no trace of it, if close() came first.
  [[nodiscard]] Result<std::optional<Snapshot>> accept_failed(const Spec& spec, const Error& error);
  [[nodiscard]] std::unexpected<Error> refuse();  // close() came first: the step counts as never saved
  void end_turn();                                // a turn that led to no snapshot

  EngineShared& shared_;
  const Options& options_ = shared_.options;
  const Log& log_ = shared_.log;
  InFlight& jobs_ = shared_.jobs;
  SkipThread* const turns_ = shared_.turns.get();
  const std::function<Status()> start_threads_;

  std::optional<std::uint64_t> last_step_;  // saved or restored by this engine
  std::uint64_t saves_ = 0;
  // Structure and number of tensors of the last state that passed; held so that its address is not reused.
  std::pair<std::shared_ptr<const void>, std::size_t> checked_;
  ReplicaShares replica_shares_;
  ReplicaSampler replica_sampler_;
};

}  // namespace slackwater
