// RankCommitter: the decision about one step if several ranks save together. Each rank votes, rank 0 decides for all,
// and the others learn the outcome. docs/ranks.md has the messages, and what follows from each failure.
// Owned by Committer. Thread rule: it belongs to sw-commit, and never waits for other ranks with a lock held.
#pragma once

#include <optional>
#include <stop_token>
#include <string>

#include "engine/engine_shared.hpp"
#include "ranks/commit_protocol.hpp"
#include "ranks/merged_index.hpp"
#include "ranks/vote.hpp"

namespace slackwater {

// The parts of a manifest that every decision has. A commit adds what it says about files.
[[nodiscard]] Manifest manifest_of(const EngineShared& shared, const SaveJob& job, Decision decision);

// This rank's vote. `index_text`: its part of the index. Any thread.
[[nodiscard]] Result<Vote> make_vote(SaveJob& job, const RecordReference& record, std::string index_text);

class RankCommitter {
 public:
  explicit RankCommitter(EngineShared& shared) : shared_(shared) {}

  // This rank's files and record are durable. It votes, then makes the decision (rank 0) or learns it.
  [[nodiscard]] Status decide(SaveJob& job, const RecordReference& record, const std::stop_token& stop);
  // The step failed here. If this rank has not voted yet, it tells the others why.
  void give_up(SaveJob& job, const Error& error, const std::stop_token& stop);

 private:
  // How far the decision to commit has come.
  struct Publishing {
    bool tried = false;            // to write it: it may be on disk even if that looked like a failure
    bool replicas_differ = false;  // so there is no commit
  };

  [[nodiscard]] Status decide_for_all(const SaveJob& job, Result<Vote> votes);
  [[nodiscard]] Status try_to_publish(const SaveJob& job, Vote votes, Publishing& publishing);
  [[nodiscard]] Status publish_commit(const SaveJob& job, Vote votes, Publishing& publishing);
  [[nodiscard]] std::optional<Error> give_up_for_all(const SaveJob& job, const std::string& reason, bool tried);
  [[nodiscard]] Status learn_outcome(const SaveJob& job, const std::stop_token& stop);
  void place_decision(const SaveJob& job, const Outcome& outcome);
  void report_failure(SaveJob& job, const Error& error, const std::stop_token& stop);
  void compare_every_byte() { shared_.replicas_compared.lock()->reset(); }

  EngineShared& shared_;
  const Options& options_ = shared_.options;
  const Log& log_ = shared_.log;
  CommitProtocol* const protocol_ = shared_.protocol.get();
  CleanerThread& cleaner_ = shared_.cleaner;

  IndexCache index_cache_;

  // node_local: rank 0 sends its manifest, and the index if that has changed; the others place both in their directory.
  std::string manifest_text_;
  std::string index_text_;
  Digest128 index_sent_;
  std::string index_received_;
};

}  // namespace slackwater
