// The commit thread: what happens to a voyage whose bytes are written, or that failed on the way.
#include <algorithm>
#include <exception>
#include <utility>

#include "base/result.hpp"
#include "base/units.hpp"
#include "engine/engine_impl.hpp"

namespace slackwater {

void Engine::Impl::commit_loop(std::stop_token stop) {
  while (true) {
    const std::shared_ptr<Voyage> voyage = await_front(stop);
    if (!voyage) return;
    finish(*voyage, stop);
    voyage->snapshot->retire();
    {
      std::lock_guard lock(mutex_);
      active_.pop_front();
    }
    changed_.notify_all();
  }
}

void Engine::Impl::finish(Voyage& voyage, const std::stop_token& stop) {
  Snapshot::Impl& snapshot = *voyage.snapshot;
  Status status;
  if (const auto error = snapshot.error()) {
    status = fail(*error);
  } else {
    try {
      status = commit(voyage, stop);
    } catch (const std::exception& trouble) {
      // Once this rank has voted the others may commit, whatever happens here.
      status = fail(voyage.voted ? ErrorKind::kInDoubt : ErrorKind::kOutOfMemory,
                    fmt::format("step {} could not be committed: {}", snapshot.step(), trouble.what()));
    }
    try {
      settle_pin(voyage, status.has_value());
    } catch (const std::exception& trouble) {
      log_.error("step {} could not be pinned: {}", snapshot.step(), trouble.what());
    }
    snapshot.conclude(status);
  }
  try {
    wind_up(voyage, status, stop);
  } catch (const std::exception& trouble) {
    log_.error("what step {} left behind could not be cleared away: {}", snapshot.step(), trouble.what());
  }
  std::lock_guard lock(mutex_);
  end_turn(status.has_value());
  ++(snapshot.failed() ? stats_.snapshots_failed : stats_.snapshots_committed);
}

// Tells who must hear of it, and keeps and clears away what is left of it.
void Engine::Impl::wind_up(Voyage& voyage, const Status& status, const std::stop_token& stop) {
  Snapshot::Impl& snapshot = *voyage.snapshot;
  if (!status && fleet_ && !voyage.voted) report_failure(voyage, status.error(), stop);

  if (status) {
    if (!std::exchange(told_pool_, true)) tell_pool(snapshot);
  } else {
    ledger_.given_up();
    Error kept = status.error();
    kept.message = fmt::format("step {} was not checkpointed: {}", snapshot.step(), kept.message);
    log_.error("{}", kept.to_string());
    note_error(kept, snapshot.step());
    // In doubt: the decision may be on disk, so nothing is taken away.
    if (kept.kind != ErrorKind::kInDoubt) fleet_ ? discard_own_files(voyage) : clear_away(voyage);
    ask_to_sweep();  // of several ranks, what is left may go only once a later step was committed
    if (cleaner_) cleaner_->request(kept.kind == ErrorKind::kNoSpace ? Need::kSpace : Need::kOrder);
  }
  if (const auto torn = snapshot.torn_tensors(); !torn.empty()) {
    std::lock_guard lock(mutex_);
    std::size_t learned = 0;
    for (const std::string& tensor : torn) learned += known_torn_.insert(tensor).second ? 1 : 0;
    if (learned > 0) {
      log_.warn("tensor '{}'{} changed before the fence: captured inside save() from now on", torn[0],
                torn.size() == 1 ? "" : fmt::format(" and {} more", torn.size() - 1));
    }
  }
}

// docs/durability.md has this order with its reasons; the single files are in os/durable.hpp.
Status Engine::Impl::commit(Voyage& voyage, const std::stop_token& stop) {
  Snapshot::Impl& snapshot = *voyage.snapshot;
  Record record{.run = voyage.attempt.run,
                .identity = {.step = voyage.name.step,
                             .attempt = voyage.name.attempt,
                             .rank = options_.rank,
                             .world = options_.world},
                .files = {}};
  for (std::size_t part = 0; part < voyage.written.size(); ++part) {
    WrittenStream& written = *voyage.written[part];
    const StreamLayout& layout = voyage.layout->parts[part];
    SW_TRY(written.file.finish());
    if (fleet_) fleet_->came_further(true);
    record.files.push_back(FileRecord{.name = layout.file_name(),
                                      .size_bytes = layout.size_bytes(),
                                      .tensor_count = layout.extents().size(),
                                      .block_digests = std::move(written.block_digests)});
  }

  RecordReference vote;
  // The lock is let go of while room is made: delete() holds the cleaner off and then waits for this lock.
  SW_ASSIGN(vote, with_room([&] {
              std::lock_guard lock(versions_mutex_);
              return versions_->promise(record, fleet_ ? std::string() : voyage.index_text);
            }));
  snapshot.reach(Level::kDurable);

  pin_ahead(voyage);

  if (const auto error = snapshot.begin_decision()) return fail(*error);

  if (!fleet_) return decide_alone(voyage, vote);
  SW_ASSIGN(Ballot ballot, ballot_of(voyage, vote));
  SW_TRY(decide_together(voyage, std::move(ballot), stop));
  if (voyage.compares_every_byte) {
    std::lock_guard lock(mutex_);
    replicas_compared_ = voyage.replicas;
  }
  return {};
}

Result<Ballot> Engine::Impl::ballot_of(Voyage& voyage, const RecordReference& record) const {
  const Digest128 part = digest128(voyage.index_text);
  Ballot ballot{.records = {run_of(record.rank, record.digest)},
                .index_parts = {{options_.rank, 1, part, std::move(voyage.index_text)}},
                .size_bytes = voyage.layout->size_bytes,
                .replicas = {},
                .samples = {},
                .replicated_values = {},
                .values = {voyage.value_digests.begin(), voyage.value_digests.end()},
                .failures = {}};
  for (const auto& [group, tensors] : voyage.replica_digests) {
    ballot.replicas[group].push_back({.ranks = {options_.rank}, .tensors = tensors});
  }
  SW_ASSIGN(auto samples, voyage.replica_look.samples(options_.rank));
  for (auto& [group, seen] : samples) ballot.samples[group].push_back(std::move(seen));
  if (!voyage.state.replicated_values.empty()) {
    std::vector<std::pair<std::string_view, std::uint64_t>> values;
    std::string names;  // a value that a rank lacks is a difference
    for (const auto& [name, digest] : voyage.replicated_values) {
      values.emplace_back(name, digest);
      names += name + '\n';
    }
    ballot.replicated_values.push_back(samples_of(options_.rank, 0, digest64(std::as_bytes(std::span(names))),
                                                  voyage.name.step, values,
                                                  voyage.compares_every_byte ? kMaxListedValues : kListedSamples));
  }
  return ballot;
}

Manifest Engine::Impl::manifest_of(const Voyage& voyage, Decision decision) const {
  return Manifest{.run = voyage.attempt.run,
                  .step = voyage.name.step,
                  .attempt = voyage.name.attempt,
                  .world = options_.world,
                  .decision = decision,
                  .created_unix_ms = clock_->wall_unix_ms(),
                  .metrics = decision == Decision::kCommit ? voyage.state.metrics : std::map<std::string, double>()};
}

Status Engine::Impl::decide_alone(const Voyage& voyage, const RecordReference& vote) {
  Manifest manifest = manifest_of(voyage, Decision::kCommit);
  const auto is_global = [](const Tensor& tensor) { return tensor.shard.has_value(); };
  if (std::ranges::any_of(voyage.state.tensors, is_global)) manifest.required_features = {kGlobalTensorsFeature};
  manifest.records = {vote};
  manifest.index_digest = digest128(voyage.index_text);
  manifest.size_bytes = voyage.layout->size_bytes;
  manifest.tensor_count = voyage.tensor_count;
  SW_ASSIGN(const Manifest decided, with_room([&] {
              std::lock_guard lock(versions_mutex_);
              return versions_->decide(manifest);
            }));
  if (decided.decision == Decision::kAbort) {
    return fail(ErrorKind::kAborted, fmt::format("step {} was aborted: {}", voyage.name.step, decided.reason),
                voyage.directory);
  }
  note_committed(decided, voyage.pinned);
  return {};
}

void Engine::Impl::clear_away(const Voyage& voyage) {
  if (voyage.directory.empty()) return;
  std::lock_guard lock(versions_mutex_);
  if (auto status = versions_->remove(voyage.name, "it could not be committed"); !status) {
    log_.warn("the remains of step {} could not be removed: {}", voyage.name.step, status.error().to_string());
  }
}

// Once, when the first checkpoint has shown how fast the disk is: what a pool smaller than the state will cost at each fence.
void Engine::Impl::tell_pool(const Snapshot::Impl& snapshot) const {
  const SnapshotStats stats = snapshot.stats();
  const std::uint64_t pool_bytes = pipeline_->pool_bytes();
  if (stats.durable_seconds <= 0 || pool_bytes >= stats.total_bytes) return;
  const double rate = static_cast<double>(stats.total_bytes) / stats.durable_seconds;
  log_.info(
      "the pool ({}) is smaller than the state ({}): the fence waits until {} are written, about {} at the {:.2f} GB/s "
      "seen so far",
      format_bytes(pool_bytes), format_bytes(stats.total_bytes), format_bytes(stats.total_bytes - pool_bytes),
      format_seconds(static_cast<double>(stats.total_bytes - pool_bytes) / rate), rate / 1e9);
}

}  // namespace slackwater
