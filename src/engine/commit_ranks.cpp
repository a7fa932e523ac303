// The commit thread where several ranks save together: heartbeats while this rank still writes, its ballot, the one
// decision, and how each rank learns of it. docs/ranks.md has the messages, and what each failure leads to.
#include <algorithm>
#include <chrono>
#include <tuple>
#include <utility>

#include "base/digest.hpp"
#include "base/result.hpp"
#include "engine/engine_impl.hpp"

namespace slackwater {

// The next snapshot to commit, once nothing of it is under way any more; null: told to stop. With several ranks the
// others may wait for this one's vote meanwhile, so it sends heartbeats as long as bytes of this snapshot move. A disk
// that hangs moves none.
std::shared_ptr<Voyage> Engine::Impl::await_front(const std::stop_token& stop) {
  Lock lock(mutex_);
  if (!changed_.wait(lock, stop, [&] { return !active_.empty(); })) return nullptr;
  const std::shared_ptr<Voyage> voyage = active_.front();
  const auto arrived = [&] { return voyage->arrived.load(); };
  if (!fleet_) {
    changed_.wait(lock, stop, arrived);
    return arrived() ? voyage : nullptr;
  }

  const auto bytes_moved = [&] {
    const Progress progress = voyage->snapshot->progress();
    return std::tuple(progress.staged_bytes, progress.written_bytes);
  };
  // Short, so that a heartbeat that is due goes out soon after the progress it tells of.
  const auto pause = std::clamp<std::chrono::milliseconds>(options_.commit_timeout / 64, std::chrono::milliseconds(1),
                                                           std::chrono::milliseconds(100));
  fleet_->begin_step();
  for (auto seen = bytes_moved(); !changed_.wait_for(lock, stop, pause, arrived);) {
    if (stop.stop_requested()) return nullptr;
    lock.unlock();  // a heartbeat is a message, and nobody may wait for it
    const auto now = bytes_moved();
    fleet_->came_further(std::exchange(seen, now) != now);
    lock.lock();
  }
  lock.unlock();
  if (!voyage->snapshot->failed()) fleet_->came_further(true);  // all bytes are written
  return voyage;
}

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
  return {};
}

Status Engine::Impl::decide_for_all(const Voyage& voyage, Result<Ballot> ballots) {
  std::string reason;          // to give the step up
  std::optional<Error> error;  // the same, or what came of the attempt to commit
  Publishing publishing;
  if (!ballots) {
    reason = fmt::format("rank 0: {}", ballots.error().message);
  } else if (!ballots->failures.empty()) {
    reason = describe(ballots->failures);
    if (cleaner_ && std::ranges::any_of(ballots->failures, &Ballot::Failure::no_space)) cleaner_->request(Need::kSpace);
    publishing.replicas_differ = std::ranges::any_of(ballots->failures, &Ballot::Failure::replicas_differ);
  } else if (Status published = try_to_publish(voyage, std::move(*ballots), publishing); !published) {
    error = std::move(published).error();
    const bool settled = error->kind == ErrorKind::kInDoubt || error->kind == ErrorKind::kAborted;
    // What ranks disagree about names them itself.
    if (!settled) {
      reason = error->kind == ErrorKind::kMismatch ? error->message : fmt::format("rank 0: {}", error->to_string());
    }
  }
  if (!reason.empty()) error = give_up_for_all(voyage, reason, publishing.tried);
  if (publishing.replicas_differ) compare_every_byte();
  if (const Status told = fleet_->announce(voyage.name, {error, publishing.replicas_differ}); !told) {
    log_.warn("the other ranks could not be told how step {} ended, and find out after commit_timeout: {}",
              voyage.name.step, told.error().to_string());
  }
  if (error) return fail(std::move(*error));
  return {};
}

// From the next save() on, until a commit shows that replicas are alike.
void Engine::Impl::compare_every_byte() {
  std::lock_guard lock(mutex_);
  replicas_compared_.reset();
}

// The error of all ranks; nullopt: the step is committed, because the decision got through though it did not look so.
std::optional<Error> Engine::Impl::give_up_for_all(const Voyage& voyage, const std::string& reason, bool tried) {
  Manifest manifest = manifest_of(voyage, Decision::kAbort);
  manifest.reason = reason;
  const auto decided = with_room([&] {
    std::lock_guard lock(versions_mutex_);
    return versions_->decide(manifest);
  });
  if (decided && decided->decision == Decision::kCommit) {
    note_committed(*decided, voyage.pinned);
    return std::nullopt;
  }
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
Status Engine::Impl::try_to_publish(const Voyage& voyage, Ballot ballots, Publishing& publishing) {
  try {
    return publish_commit(voyage, std::move(ballots), publishing);
  } catch (const std::exception& trouble) {
    return fail(ErrorKind::kOutOfMemory, fmt::format("the index of all ranks could not be made: {}", trouble.what()));
  }
}

Status Engine::Impl::publish_commit(const Voyage& voyage, Ballot ballots, Publishing& publishing) {
  if (auto mismatch = replica_mismatch(ballots)) {
    publishing.replicas_differ = true;
    return fail(ErrorKind::kMismatch, std::move(*mismatch));
  }
  SW_ASSIGN(const auto index, ledger_.merge(voyage.name.attempt, std::move(ballots.index_parts), Reach::kEverybody));
  Manifest manifest = manifest_of(voyage, Decision::kCommit);
  if (index->has_local || !index->has_global) manifest.required_features.emplace_back(kRankLocalFeature);
  if (index->has_global) manifest.required_features.emplace_back(kGlobalTensorsFeature);
  manifest.rank_local_values = rank_local_values(ballots);
  SW_ASSIGN(manifest.records, references(ballots, files_, voyage.directory));
  manifest.index_digest = index->digest;
  manifest.size_bytes = ballots.size_bytes;
  manifest.tensor_count = index->tensor_count;
  SW_TRY(with_room([&] {
    std::lock_guard lock(versions_mutex_);
    return versions_->write_index(voyage.name, index->text);
  }));
  publishing.tried = true;  // before the call: should it throw, the decision may be there all the same
  const auto decided = with_room([&] {
    std::lock_guard lock(versions_mutex_);
    return versions_->decide(manifest);
  });
  if (!decided) {
    // Without space for the manifest nothing was written down; any other failure may only look like one.
    publishing.tried = decided.error().kind != ErrorKind::kNoSpace;
    return fail(decided.error());
  }
  if (decided->decision == Decision::kAbort)
    return fail(aborted_everywhere(voyage.name.step, decided->reason, voyage.directory));
  note_committed(*decided, voyage.pinned);
  return {};
}

Status Engine::Impl::learn_outcome(const Voyage& voyage, const std::stop_token& stop) {
  const auto told = fleet_->await_outcome(voyage.name, stop);
  if (told && *told) {
    if ((*told)->replicas_differ) compare_every_byte();
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
  auto ballots = fleet_->vote(
      voyage.name, voyage.directory,
      Ballot{.failures = {{options_.rank, error.to_string(), error.kind == ErrorKind::kNoSpace}}}, ledger_, stop);
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
