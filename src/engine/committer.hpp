// Committer: ends each save job whose bytes are written, or that failed on the way. It runs on a thread of its own
// (sw-commit) and takes the jobs in the order of their steps: sync, record, decision, pin. It also removes what a
// failed job left behind. With several ranks, RankCommitter makes the decision. A pin for a step in flight is written
// before the decision to commit it. So neither a clean-up nor a crash can find the step committed and not pinned. A pin
// requested while the decision is being made is written right after it, before anybody learns of the commit.
// Owned by Engine::Impl. Thread rule: start() with InFlight's lock held, stop() from close(). All other functions and
// the state belong to sw-commit.
// Lifetime: stopped after the pipeline, because it commits or removes whatever is drained.
#pragma once

#include <memory>
#include <optional>
#include <stop_token>
#include <thread>

#include "engine/engine_shared.hpp"
#include "engine/rank_committer.hpp"

namespace slackwater {

// What a rank states about its files of this step; the digests are to be filled in.
[[nodiscard]] Record record_of(const EngineShared& shared, const SaveJob& job);
// The commit of a run with one rank, without its record. The index must be made.
[[nodiscard]] Manifest manifest_alone(const EngineShared& shared, const SaveJob& job);

class Committer {
 public:
  explicit Committer(EngineShared& shared);

  void start();  // idempotent; throws std::system_error, as start_thread() does
  void stop();   // after every job that is drained

 private:
  void loop(const std::stop_token& stop);
  [[nodiscard]] std::shared_ptr<SaveJob> await_front(const std::stop_token& stop);
  void finish(SaveJob& job, const std::stop_token& stop);  // commits one drained save job, or removes it
  [[nodiscard]] Status commit(SaveJob& job, const std::stop_token& stop);
  [[nodiscard]] Result<RecordReference> write_record(SaveJob& job);
  [[nodiscard]] Status decide_alone(const SaveJob& job, const RecordReference& vote);
  void report_outcome(SaveJob& job, const Status& status, const std::stop_token& stop);
  void remove_remains(const SaveJob& job);
  [[nodiscard]] Status remove_remains_of_version(const SaveJob& job);
  void pin_ahead(SaveJob& job);
  void finish_pin(SaveJob& job, bool committed);
  void log_pool_size(const Snapshot::Impl& snapshot) const;

  EngineShared& shared_;
  const Options& options_ = shared_.options;
  const Log& log_ = shared_.log;
  CommitProtocol* const protocol_ = shared_.protocol.get();
  InFlight& jobs_ = shared_.jobs;
  CleanerThread& cleaner_ = shared_.cleaner;

  std::optional<RankCommitter> ranks_;  // if there are several
  bool logged_pool_size_ = false;

  std::jthread thread_;  // started last
};

}  // namespace slackwater
