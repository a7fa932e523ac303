#include "engine/rank_committer.hpp"

#include <algorithm>
#include <exception>
#include <utility>

#include <fmt/format.h>

#include "base/digest.hpp"
#include "base/result.hpp"

namespace slackwater {

Manifest manifest_of(const EngineShared& shared, const SaveJob& job, Decision decision) {
  return Manifest{.run = job.attempt.run,
                  .step = job.name.step,
                  .attempt = job.name.attempt,
                  .world = shared.options.world,
                  .decision = decision,
                  .created_unix_ms = shared.clock->wall_unix_ms(),
                  .metrics = decision == Decision::kCommit ? job.state.metrics : std::map<std::string, double>()};
}

Status RankCommitter::decide(SaveJob& job, const RecordReference& record, const std::stop_token& stop) {
  SW_ASSIGN(Vote own, make_vote(job, record, std::move(job.index_text)));
  // From here on other ranks may have the vote and commit with it, so this rank must not give up alone any more.
  job.voted = true;
  auto votes = protocol_->vote(job.name, job.directory, std::move(own), index_cache_, stop);
  if (protocol_->is_rank_0()) {
    SW_TRY(decide_for_all(job, std::move(votes)));
  } else {
    // Even if the vote was not delivered, there is one decision for the version, and this rank must learn it.
    if (!votes) log_.warn("this rank's vote was not delivered: {}", votes.error().to_string());
    SW_TRY(learn_outcome(job, stop));
    shared_.promotions.add(job.name);
    protocol_->forget(job.name);  // rank 0 has decided, so nobody will read this rank's vote any more
  }
  // Everybody has what was committed. The next votes carry only what has changed.
  index_cache_.committed();
  if (job.compares_every_byte) *shared_.replicas_compared.lock() = job.replicas;
  return {};
}

void RankCommitter::give_up(SaveJob& job, const Error& error, const std::stop_token& stop) {
  if (!job.voted) report_failure(job, error, stop);
  index_cache_.given_up();
}

// This rank's vote: its record, its part of the index, and digests of everything that should be the same on all
// ranks.
Result<Vote> make_vote(SaveJob& job, const RecordReference& record, std::string index_text) {
  const std::uint32_t rank = record.rank;
  const Digest128 part = digest128(index_text);
  Vote vote{.records = {run_of(record.rank, record.digest)},
            .index_parts = {{rank, 1, part, std::move(index_text)}},
            .size_bytes = job.layout->size_bytes,
            .replicas = {},
            .samples = {},
            .replicated_values = {},
            .values = {job.value_digests.begin(), job.value_digests.end()},
            .failures = {}};
  for (const auto& [group, tensors] : job.replica_digests) {
    vote.replicas[group].push_back({.ranks = {rank}, .tensors = tensors});
  }
  // Samples may still be pending on a device. Waiting for them here, long after the fence, holds nobody up.
  const std::lock_guard lock(job.samples_mutex);
  SW_ASSIGN(auto samples, job.replica_samples.samples(rank));
  for (auto& [group, seen] : samples) vote.samples[group].push_back(std::move(seen));
  if (!job.state.replicated_values.empty()) {
    std::vector<std::pair<std::string_view, std::uint64_t>> values;
    std::string names;  // part of the digest, so that a value which a rank lacks is a difference
    for (const auto& [name, digest] : job.replicated_values) {
      values.emplace_back(name, digest);
      names += name + '\n';
    }
    vote.replicated_values.push_back(samples_of(rank, 0, digest64(std::as_bytes(std::span(names))), job.name.step,
                                                values, job.compares_every_byte ? kMaxListedValues : kListedSamples));
  }
  return vote;
}

// On rank 0. The others wait for an outcome, whatever happens here. So every path leads to announce().
Status RankCommitter::decide_for_all(const SaveJob& job, Result<Vote> votes) {
  std::string reason;          // for the abort; empty: no abort needs to be written
  std::optional<Error> error;  // of the step; none: committed
  Publishing publishing;
  if (!votes) {
    reason = fmt::format("rank 0: {}", votes.error().message);
  } else if (!votes->failures.empty()) {
    reason = describe(votes->failures);
    // Only rank 0 deletes, so it makes room for a rank that ran out of space.
    if (std::ranges::any_of(votes->failures, &Vote::Failure::no_space)) cleaner_.request(Need::kSpace);
    publishing.replicas_differ = std::ranges::any_of(votes->failures, &Vote::Failure::replicas_differ);
  } else if (Status published = try_to_publish(job, std::move(*votes), publishing); !published) {
    error = std::move(published).error();
    const bool settled = error->kind == ErrorKind::kInDoubt || error->kind == ErrorKind::kAborted;
    // A mismatch already names the ranks that disagree.
    if (!settled) {
      reason = error->kind == ErrorKind::kMismatch ? error->message : fmt::format("rank 0: {}", error->to_string());
    }
  }
  // An abort is written to disk too, so that a rank that gets no message cannot take the step for undecided.
  if (!reason.empty()) error = give_up_for_all(job, reason, publishing.tried);
  // The next step compares every byte and so finds out which tensors differ.
  if (publishing.replicas_differ) compare_every_byte();
  Outcome outcome{error, publishing.replicas_differ};
  if (options_.node_local && !error) {
    outcome.manifest_text = std::exchange(manifest_text_, {});
    outcome.index_text = std::exchange(index_text_, {});
  }
  if (const Status told = protocol_->announce(job.name, outcome); !told) {
    log_.warn("the other ranks could not be told how step {} ended, and find out after commit_timeout: {}",
              job.name.step, told.error().to_string());
  }
  if (error) return fail(std::move(*error));
  return {};
}

// Writes the abort and returns the error for all ranks. nullopt: the step is committed after all, because the decision
// to commit reached the disk although writing it reported a failure.
std::optional<Error> RankCommitter::give_up_for_all(const SaveJob& job, const std::string& reason, bool tried) {
  Manifest manifest = manifest_of(shared_, job, Decision::kAbort);
  manifest.reason = reason;
  const auto decided = cleaner_.exclusive_with_room([&](VersionStore& versions) { return versions.decide(manifest); });
  if (decided && decided->decision == Decision::kCommit) {
    shared_.note_committed(*decided, job.pinned);
    return std::nullopt;
  }
  // Another rank may have been first. Then its reason is the one that everybody gets.
  if (decided) return aborted_everywhere(job.name.step, decided->reason, job.directory);
  if (decided.error().kind == ErrorKind::kInDoubt) return decided.error();
  // The commit may be on disk although it looked like a failure, and no abort excludes it.
  if (tried && decided.error().kind != ErrorKind::kNotFound) {
    return Error{ErrorKind::kInDoubt,
                 fmt::format("neither the commit nor the abort of step {} could be written: {}", job.name.step,
                             decided.error().message),
                 job.directory};
  }
  // Only rank 0 commits, so nobody can commit this step any more, even without a written abort. kNotFound is expected:
  // perhaps no rank got as far as making the directory.
  if (decided.error().kind != ErrorKind::kNotFound) {
    log_.warn("the abort of step {} could not be written: {}", job.name.step, decided.error().to_string());
  }
  return aborted_everywhere(job.name.step, reason, job.directory);
}

// The other ranks wait for an outcome, so an exception must become an Error.
Status RankCommitter::try_to_publish(const SaveJob& job, Vote votes, Publishing& publishing) {
  try {
    return publish_commit(job, std::move(votes), publishing);
  } catch (const std::exception& trouble) {
    return fail(ErrorKind::kOutOfMemory, fmt::format("the index of all ranks could not be made: {}", trouble.what()));
  }
}

// Compares the votes, writes the index of all ranks, and then the decision.
Status RankCommitter::publish_commit(const SaveJob& job, Vote votes, Publishing& publishing) {
  // Ranks that have drifted apart must not become one checkpoint.
  if (auto mismatch = replica_mismatch(votes)) {
    publishing.replicas_differ = true;
    return fail(ErrorKind::kMismatch, std::move(*mismatch));
  }
  // Merges the parts into one index. That fails unless the boxes of every tensor cover it exactly.
  SW_ASSIGN(const auto index, index_cache_.merge(job.name.attempt, std::move(votes.index_parts), Scope::kEverybody));
  Manifest manifest = manifest_of(shared_, job, Decision::kCommit);
  SW_TRY(fill_commit(manifest, votes, *index, shared_.files, job.directory));
  // The index must be durable before the manifest, which states its digest.
  SW_TRY(cleaner_.exclusive_with_room(
      [&](VersionStore& versions) { return versions.write_index(job.name, index->text); }));
  publishing.tried = true;  // before the call: even if it throws, the decision may be on disk
  const auto decided = cleaner_.exclusive_with_room([&](VersionStore& versions) { return versions.decide(manifest); });
  if (!decided) {
    // Without space nothing was written. After any other failure the decision may still be on disk.
    publishing.tried = decided.error().kind != ErrorKind::kNoSpace;
    return fail(decided.error());
  }
  if (decided->decision == Decision::kAbort)
    return fail(aborted_everywhere(job.name.step, decided->reason, job.directory));
  shared_.note_committed(*decided, job.pinned);
  if (options_.node_local) {
    manifest_text_ = serialize(*decided);
    if (std::exchange(index_sent_, index->digest) != index->digest) index_text_ = index->text;
  }
  return {};
}

// The decision is rank 0's. This node's directory gets a copy, so that it can be read alone. If this node dies before
// that, the next restore learns of the decision from another node or from a lower tier.
void RankCommitter::place_decision(const SaveJob& job, const Outcome& outcome) {
  if (!outcome.index_text.empty()) index_received_ = outcome.index_text;
  const auto manifest = parse_manifest(outcome.manifest_text, job.directory);
  Status placed = manifest ? Status() : fail(manifest.error());
  if (placed) {
    const bool known = digest128(index_received_) == manifest->index_digest;
    placed = cleaner_.exclusive_with_room([&](VersionStore& versions) {
      return versions.place_decision(job.name, outcome.manifest_text, known ? index_received_ : std::string());
    });
    cleaner_.note_committed(*manifest, job.pinned);
  }
  if (!placed)
    log_.warn("step {} is committed, but the directory of this node does not say so: {}", job.name.step,
              placed.error().to_string());
}

// On the other ranks, after their vote.
Status RankCommitter::learn_outcome(const SaveJob& job, const std::stop_token& stop) {
  const auto told = protocol_->await_outcome(job.name, stop);
  if (told && *told) {
    if ((*told)->replicas_differ) compare_every_byte();
    if ((*told)->error) return fail(*(*told)->error);
    if (options_.node_local) place_decision(job, **told);
    return {};
  }
  // The vote is valid even though this rank closes. Only the disk will tell how the step ended.
  if (!told && told.error().kind == ErrorKind::kClosed) {
    return fail(ErrorKind::kInDoubt,
                fmt::format("rank {} was closed after it voted for step {}; the other ranks decide without it",
                            options_.rank, job.name.step),
                job.directory);
  }
  // In a directory of its own, this rank cannot exclude a commit. Its files stay, and the next restore finds out.
  if (options_.node_local) {
    return fail(ErrorKind::kInDoubt,
                fmt::format("rank 0 did not say how step {} ended{}", job.name.step,
                            told ? " (commit_timeout)" : ": " + told.error().message),
                job.directory);
  }
  // A rank that has voted must not give up alone. It tries to write an abort: the first manifest decides for all.
  const std::string reason =
      told ? fmt::format("rank 0 had not decided when the deadline of rank {} passed (commit_timeout)", options_.rank)
           : told.error().message;
  Manifest manifest = manifest_of(shared_, job, Decision::kAbort);
  manifest.reason = reason;
  auto decided =
      shared_.versions.exclusive([&](VersionStore& versions) { return versions.decide(std::move(manifest)); });
  if (!decided) {
    Error error = std::move(decided).error();
    // Only rank 0 removes the directory: of a newer attempt, or of this one after an abort.
    if (error.kind == ErrorKind::kNotFound)
      return fail(aborted_everywhere(job.name.step, "its directory was removed meanwhile", job.directory));
    if (error.kind != ErrorKind::kAborted) error.kind = ErrorKind::kInDoubt;
    return fail(std::move(error));
  }
  if (decided->decision == Decision::kAbort)
    return fail(aborted_everywhere(job.name.step, decided->reason, job.directory));
  return {};
}

// Votes with the reason why the step failed here, so that nobody waits for this rank until the deadline.
void RankCommitter::report_failure(SaveJob& job, const Error& error, const std::stop_token& stop) {
  job.voted = true;
  if (job.name.attempt == 0) {  // it failed before it was planned
    const std::optional<Attempt> attempt = shared_.live.lock()->attempt();
    if (!attempt) return;  // this rank has no attempt to vote in: the others know why, or report it as missing
    job.attempt = *attempt;
    job.name = {job.snapshot->step(), attempt->number};
  }
  auto votes = protocol_->vote(
      job.name, job.directory,
      Vote{.failures = {{options_.rank, error.to_string(), error.kind == ErrorKind::kNoSpace}}}, index_cache_, stop);
  if (protocol_->is_rank_0()) {
    static_cast<void>(decide_for_all(job, std::move(votes)));  // this snapshot already has its error
  } else if (!votes) {
    log_.warn("the other ranks could not be told that step {} failed here: {}", job.name.step,
              votes.error().to_string());
  }
}

}  // namespace slackwater
