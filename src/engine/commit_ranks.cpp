// The commit thread where several ranks save together: this rank's ballot, the one decision, and how each rank learns
// of it. docs/ranks.md has the messages, and what each failure leads to.
#include <utility>

#include "base/digest.hpp"
#include "base/result.hpp"
#include "engine/engine_impl.hpp"

namespace slackwater {

Status Engine::Impl::decide_together(Voyage& voyage, Ballot own, const std::stop_token& stop) {
  voyage.voted = true;
  auto ballots = fleet_->vote(voyage.name, voyage.directory, std::move(own), ledger_, stop);
  Status status;
  if (fleet_->leads()) {
    status = decide_for_all(voyage, std::move(ballots));
  } else {
    // Even if the ballot could not be cast: one decision for a version, and that is where it is found.
    if (!ballots) log_.warn("this rank's vote was not delivered: {}", ballots.error().to_string());
    status = learn_outcome(voyage, stop);
    if (status) fleet_->forget(voyage.name);
  }
  if (!status) return status;
  ledger_.committed();
  // The others look when they are asked: thousands that list the directory at every commit are a load on any server.
  if (!fleet_->leads()) return {};
  std::lock_guard lock(versions_mutex_);
  refresh_catalog();  // before anybody hears of it: who waited for the commit finds it among the versions
  return {};
}

Status Engine::Impl::decide_for_all(const Voyage& voyage, Result<Ballot> ballots) {
  std::string reason;          // to give the step up
  std::optional<Error> error;  // the same, or what came of the attempt to commit
  bool tried = false;          // to write the decision to commit: it may be there even if that looked like a failure
  if (!ballots) {
    reason = fmt::format("rank 0: {}", ballots.error().message);
  } else if (!ballots->failures.empty()) {
    reason = describe(ballots->failures);
  } else if (Status published = try_to_publish(voyage, std::move(*ballots), tried); !published) {
    error = std::move(published).error();
    const bool settled = error->kind == ErrorKind::kInDoubt || error->kind == ErrorKind::kAborted;
    // What ranks disagree about names them itself.
    if (!settled) {
      reason = error->kind == ErrorKind::kMismatch ? error->message : fmt::format("rank 0: {}", error->to_string());
    }
  }
  if (!reason.empty()) error = give_up_for_all(voyage, reason, tried);
  if (const Status told = fleet_->announce(voyage.name, {error}); !told) {
    log_.warn("the other ranks could not be told how step {} ended, and find out after commit_timeout: {}",
              voyage.name.step, told.error().to_string());
  }
  if (error) return fail(std::move(*error));
  return {};
}

// The error of all ranks; nullopt: the step is committed, because the decision got through though it did not look so.
std::optional<Error> Engine::Impl::give_up_for_all(const Voyage& voyage, const std::string& reason, bool tried) {
  Manifest manifest = manifest_of(voyage, Decision::kAbort);
  manifest.reason = reason;
  std::lock_guard lock(versions_mutex_);
  const auto decided = versions_->decide(std::move(manifest));
  if (decided && decided->decision == Decision::kCommit) return std::nullopt;
  // Another rank may have been first: its words are the ones that everybody gets.
  if (decided) return aborted_everywhere(voyage.name.step, decided->reason, voyage.directory);
  if (decided.error().kind == ErrorKind::kInDoubt) return decided.error();
  if (tried && decided.error().kind != ErrorKind::kNotFound) {
    return Error{ErrorKind::kInDoubt,
                 fmt::format("neither that step {} is committed nor that it is given up could be written down: {}",
                             voyage.name.step, decided.error().message),
                 voyage.directory};
  }
  // Only the leader commits, so nothing can commit this step any more, though this did not get through. Perhaps no rank
  // has come as far as to make the directory.
  if (decided.error().kind != ErrorKind::kNotFound) {
    log_.warn("that step {} was given up could not be written down: {}", voyage.name.step, decided.error().to_string());
  }
  return aborted_everywhere(voyage.name.step, reason, voyage.directory);
}

// The others wait for an outcome, so an exception must become one.
Status Engine::Impl::try_to_publish(const Voyage& voyage, Ballot ballots, bool& tried) {
  try {
    return publish_commit(voyage, std::move(ballots), tried);
  } catch (const std::exception& trouble) {
    return fail(ErrorKind::kOutOfMemory, fmt::format("the index of all ranks could not be made: {}", trouble.what()));
  }
}

Status Engine::Impl::publish_commit(const Voyage& voyage, Ballot ballots, bool& tried) {
  if (auto mismatch = replica_mismatch(ballots)) return fail(ErrorKind::kMismatch, std::move(*mismatch));
  SW_ASSIGN(const auto index, ledger_.merge(voyage.name.attempt, std::move(ballots.index_parts), Reach::kEverybody));
  Manifest manifest = manifest_of(voyage, Decision::kCommit);
  if (index->has_local || !index->has_global) manifest.required_features.emplace_back(kRankLocalFeature);
  if (index->has_global) manifest.required_features.emplace_back(kGlobalTensorsFeature);
  manifest.rank_local_values = rank_local_values(ballots);
  SW_ASSIGN(manifest.records, references(ballots, files_, voyage.directory));
  manifest.index_digest = index->digest;
  manifest.size_bytes = ballots.size_bytes;
  manifest.tensor_count = index->tensor_count;
  std::lock_guard lock(versions_mutex_);
  SW_TRY(versions_->write_index(voyage.name, index->text));
  tried = true;
  SW_ASSIGN(const Manifest decided, versions_->decide(std::move(manifest)));
  if (decided.decision == Decision::kAbort)
    return fail(aborted_everywhere(voyage.name.step, decided.reason, voyage.directory));
  return {};
}

Status Engine::Impl::learn_outcome(const Voyage& voyage, const std::stop_token& stop) {
  const auto told = fleet_->await_outcome(voyage.name, stop);
  if (told && *told) {
    if ((*told)->error) return fail(*(*told)->error);
    return {};
  }
  if (!told && told.error().kind == ErrorKind::kClosed) {
    return fail(ErrorKind::kInDoubt,
                fmt::format("rank {} was closed after it had voted for step {}; the other ranks decide without it",
                            options_.rank, voyage.name.step),
                voyage.directory);
  }
  // Nobody who voted gives up alone: whoever writes the manifest first has decided, for all.
  const std::string reason =
      told ? fmt::format("rank 0 had not decided when rank {} ran out of patience (commit_timeout)", options_.rank)
           : told.error().message;
  Manifest manifest = manifest_of(voyage, Decision::kAbort);
  manifest.reason = reason;
  std::lock_guard lock(versions_mutex_);
  auto decided = versions_->decide(std::move(manifest));
  if (!decided) {
    Error error = std::move(decided).error();
    // Only the leader of a newer attempt, or of this one after an abort, removes it.
    if (error.kind == ErrorKind::kNotFound)
      return fail(aborted_everywhere(voyage.name.step, "its directory was removed meanwhile", voyage.directory));
    if (error.kind != ErrorKind::kAborted) error.kind = ErrorKind::kInDoubt;
    return fail(std::move(error));
  }
  if (decided->decision == Decision::kAbort)
    return fail(aborted_everywhere(voyage.name.step, decided->reason, voyage.directory));
  return {};
}

void Engine::Impl::report_failure(Voyage& voyage, const Error& error, const std::stop_token& stop) {
  voyage.voted = true;
  if (voyage.name.attempt == 0) {  // it failed before it was planned
    std::lock_guard lock(mutex_);
    if (!attempt_) return;  // this rank does not know of any: the others know why, or name it as missing
    voyage.attempt = *attempt_;
    voyage.name = {voyage.snapshot->step(), attempt_->number};
  }
  auto ballots = fleet_->vote(voyage.name, voyage.directory, Ballot{.failures = {{options_.rank, error.to_string()}}},
                              ledger_, stop);
  if (fleet_->leads()) {
    static_cast<void>(decide_for_all(voyage, std::move(ballots)));  // this snapshot keeps its own error
  } else if (!ballots) {
    log_.warn("the other ranks could not be told that step {} failed here: {}", voyage.name.step,
              ballots.error().to_string());
  }
}

// Other ranks may still be writing theirs; what is left of the directory goes with the next commit.
void Engine::Impl::discard_own_files(const Voyage& voyage) {
  if (voyage.directory.empty()) return;
  std::lock_guard lock(versions_mutex_);
  if (auto status = versions_->discard(voyage.name, options_.rank); !status) {
    log_.warn("the remains of step {} could not be removed: {}", voyage.name.step, status.error().to_string());
  }
}

}  // namespace slackwater
