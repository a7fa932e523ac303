#include "engine/committer.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "base/thread.hpp"
#include "base/units.hpp"
#include "engine/part.hpp"
#include "engine/skip_thread.hpp"

namespace slackwater {

Record record_of(const EngineShared& shared, const SaveJob& job) {
  Record record{.run = job.attempt.run, .identity = job.identity(shared.options), .files = {}};
  for (const FileLayout& layout : job.layout->parts)
    record.files.push_back(FileRecord{.name = layout.file_name(),
                                      .size_bytes = layout.size_bytes(),
                                      .tensor_count = layout.extents().size(),
                                      .block_digests = {}});
  return record;
}

Manifest manifest_alone(const EngineShared& shared, const SaveJob& job) {
  Manifest manifest = manifest_of(shared, job, Decision::kCommit);
  // A reader that does not know global tensors must refuse the version, not misread it.
  const auto is_global = [](const Tensor& tensor) { return tensor.shard.has_value(); };
  if (std::ranges::any_of(job.state.tensors, is_global)) manifest.required_features = {kGlobalTensorsFeature};
  manifest.index_digest = digest128(job.index_text);
  manifest.size_bytes = job.layout->size_bytes;
  manifest.tensor_count = job.tensor_count;
  return manifest;
}

Committer::Committer(EngineShared& shared) : shared_(shared) {
  if (protocol_ != nullptr) ranks_.emplace(shared);
}

void Committer::start() {
  if (thread_.joinable()) return;
  thread_ = start_thread("sw-commit", [this](const std::stop_token& stop) { loop(stop); });
}

void Committer::stop() {
  thread_.request_stop();
  if (thread_.joinable()) thread_.join();
}

void Committer::loop(const std::stop_token& stop) {
  while (const std::shared_ptr<SaveJob> job = await_front(stop)) {
    finish(*job, stop);
    job->snapshot->hooks().retire();  // before the job goes: a fence that gives it up may still be using it
    jobs_.pop_front();                // only now is there room for another save(), and only now is the engine idle
  }
}

// The next job to commit, once nothing of it is under way any more. Null: told to stop. With several ranks, the others
// may already wait for this rank's vote. So it sends heartbeats as long as bytes of this snapshot move. If the disk
// hangs, no bytes move and no heartbeat is sent.
std::shared_ptr<SaveJob> Committer::await_front(const std::stop_token& stop) {
  const std::shared_ptr<SaveJob> job = jobs_.front(stop);
  if (!job) return nullptr;
  if (protocol_ == nullptr) return jobs_.wait_drained(*job, stop) ? job : nullptr;

  const auto bytes_moved = [&] {
    const Progress progress = job->snapshot->progress();
    return std::tuple(progress.staged_bytes, progress.written_bytes);
  };
  // Short, so that a heartbeat that is due is sent soon after the progress it reports.
  const auto pause = std::clamp<std::chrono::milliseconds>(options_.commit_timeout / 64, std::chrono::milliseconds(1),
                                                           std::chrono::milliseconds(100));
  protocol_->begin_step();
  for (auto seen = bytes_moved(); !jobs_.wait_drained(*job, stop, pause);) {
    if (stop.stop_requested()) return nullptr;
    const auto now = bytes_moved();
    protocol_->note_progress(std::exchange(seen, now) != now);
  }
  if (!job->snapshot->error()) protocol_->note_progress(true);  // all bytes are written
  return job;
}

void Committer::finish(SaveJob& job, const std::stop_token& stop) {
  Snapshot::Impl& snapshot = *job.snapshot;
  Status status;
  if (const auto error = snapshot.error()) {
    status = fail(*error);  // it failed on the way, so there is nothing to decide
  } else {
    try {
      status = commit(job, stop);
    } catch (const std::exception& trouble) {
      // Once this rank has voted, the others may commit the step, whatever happens here.
      status = fail(job.voted ? ErrorKind::kInDoubt : ErrorKind::kOutOfMemory,
                    fmt::format("step {} could not be committed: {}", snapshot.step(), trouble.what()));
    }
    // A pin may have been requested in the meantime. Write it before anybody learns that the step is committed.
    try {
      finish_pin(job, status.has_value());
    } catch (const std::exception& trouble) {
      log_.error("step {} could not be pinned: {}", snapshot.step(), trouble.what());
    }
    snapshot.conclude(status);
  }
  // The outcome is known to everybody who waits. The rest cannot change it, so its errors are only logged.
  try {
    report_outcome(job, status, stop);
  } catch (const std::exception& trouble) {
    log_.error("what step {} left behind could not be removed: {}", snapshot.step(), trouble.what());
  }
  // A step that ended makes room for another one: with on_busy=skip, rank 0 may give a new turn.
  if (shared_.turns) shared_.turns->end(status.has_value());
  ++(snapshot.error() ? shared_.counts.failed : shared_.counts.committed);
}

// docs/durability.md explains this order. os/durable.hpp has the order for single files.
Status Committer::commit(SaveJob& job, const std::stop_token& stop) {
  // Bytes and record are durable before anybody decides: a decision must never refer to bytes that a crash can lose.
  SW_ASSIGN(const RecordReference vote, write_record(job));
  // With a memory tier, a step that is staged survives the trainer. One that is durable and not decided does not, so it
  // must not pass for staged before sw-memory has published it. Nor may it be committed, and deleted, before that.
  if (job.kept) SW_TRY(job.snapshot->wait(Level::kStaged, {}));
  job.snapshot->reach(Level::kDurable);
  // The pin comes before the decision, so that no crash can leave the step committed and not pinned.
  pin_ahead(job);
  // The point of no return: from here on only this thread says how the step ended.
  if (const auto error = job.snapshot->begin_decision()) return fail(*error);
  if (job.state.part) {  // its coordinator decides
    job.snapshot->set_part(serialize(Part{.place = *job.state.part,
                                          .record = vote.digest,
                                          .index_text = std::move(job.index_text),
                                          .size_bytes = job.layout->size_bytes}));
    return {};
  }
  return ranks_ ? ranks_->decide(job, vote, stop) : decide_alone(job, vote);
}

// Syncs this rank's files, then writes the record with their digests. The rank votes with a reference to that record.
Result<RecordReference> Committer::write_record(SaveJob& job) {
  Record record = record_of(shared_, job);
  for (std::size_t part = 0; part < job.written.size(); ++part) {
    WrittenFile& written = *job.written[part];
    SW_TRY(written.file.finish());  // sync before the record: it must not vouch for bytes that a crash can lose
    if (protocol_ != nullptr) protocol_->note_progress(true);  // a sync takes long, and other ranks wait
    record.files[part].block_digests = std::move(written.block_digests);
  }
  // With several ranks, rank 0 writes the index once it has the parts of all ranks.
  const std::string no_index;
  if (job.state.part) return write_part_record(*shared_.fs, *job.state.part, record);
  return cleaner_.exclusive_with_room([&](VersionStore& versions) {
    return versions.write_record(record, protocol_ != nullptr ? no_index : job.index_text);
  });
}

// The decision of a run with one rank.
Status Committer::decide_alone(const SaveJob& job, const RecordReference& vote) {
  Manifest manifest = manifest_alone(shared_, job);
  manifest.records = {vote};
  // The manifest is created exclusively. If somebody else was first, perhaps with an abort, that decision holds.
  SW_ASSIGN(const Manifest decided,
            cleaner_.exclusive_with_room([&](VersionStore& versions) { return versions.decide(manifest); }));
  if (decided.decision == Decision::kAbort) {
    return fail(ErrorKind::kAborted, fmt::format("step {} was aborted: {}", job.name.step, decided.reason),
                job.directory);
  }
  shared_.note_committed(decided, job.pinned);
  return {};
}

// After the outcome is known: reports a failure to the other ranks and to the user, and removes what it left behind.
void Committer::report_outcome(SaveJob& job, const Status& status, const std::stop_token& stop) {
  Snapshot::Impl& snapshot = *job.snapshot;
  if (status) {
    if (shared_.memory) shared_.memory->mark_committed(job.name);
    if (!std::exchange(logged_pool_size_, true)) log_pool_size(snapshot);
  } else {
    // The other ranks first, because they wait for this rank's vote.
    if (ranks_) ranks_->give_up(job, status.error(), stop);
    Error kept = status.error();
    kept.message = fmt::format("step {} was not checkpointed: {}", snapshot.step(), kept.message);
    log_.error("{}", kept.to_string());
    shared_.errors.lock()->add(kept, snapshot.step());
    // In doubt: the decision to commit may be on disk, so nothing may be removed.
    if (kept.kind != ErrorKind::kInDoubt) remove_remains(job);
    // With several ranks, the remains may go only once a later step is committed. That commit starts the sweep.
    shared_.live.lock()->ask_to_sweep();
    cleaner_.request(kept.kind == ErrorKind::kNoSpace ? Need::kSpace : Need::kRoutine);
  }
  for (const std::string& news : shared_.engine_status->torn.take_news()) log_.warn("{}", news);
}

// With several ranks, removes only the files of this rank: others may still be writing theirs. The rest of the
// directory goes after the next commit.
void Committer::remove_remains(const SaveJob& job) {
  if (job.directory.empty()) return;
  const Status removed = job.state.part ? remove_part(*shared_.fs, *job.state.part) : remove_remains_of_version(job);
  if (!removed) {
    log_.warn("the remains of step {} could not be removed: {}", job.name.step, removed.error().to_string());
  }
}

Status Committer::remove_remains_of_version(const SaveJob& job) {
  return shared_.versions.exclusive([&](VersionStore& versions) {
    return protocol_ != nullptr ? versions.discard(job.name, options_.rank)
                                : versions.remove(job.name, "it could not be committed");
  });
}

// Writes a requested pin before this rank votes. If that fails, finish_pin() tries once more.
void Committer::pin_ahead(SaveJob& job) {
  if (!job.pin.lock()->wanted) return;
  const Status pinned =
      cleaner_.exclusive_with_room([&](VersionStore& versions) { return versions.pin_ahead(job.name); });
  job.pinned = pinned.has_value();
}

// Once it is known how the step ended: writes a pin that was requested in the meantime. Later calls to pin() find the
// version on disk. Retention has not deleted this version yet, on any rank: it is the newest until this rank votes for
// the next one.
void Committer::finish_pin(SaveJob& job, bool committed) {
  for (;;) {
    if (const auto pin = job.pin.lock(); !committed || !pin->wanted || job.pinned) {
      pin->settled = true;
      return;
    }
    const Status pinned = cleaner_.exclusive_with_room([&](VersionStore& versions) { return versions.pin(job.name); });
    job.pinned = true;  // even if it failed: one try is enough
    if (pinned) {
      shared_.live.lock()->note_pinned(job.name);
      continue;
    }
    Error error = pinned.error();
    error.message = fmt::format("step {} is committed, but could not be pinned, so retention may delete it: {}",
                                job.name.step, error.message);
    log_.error("{}", error.to_string());
    shared_.errors.lock()->add(error);
  }
}

// Once, after the first checkpoint has shown how fast the disk is: logs what a pool smaller than the state costs at
// each fence.
void Committer::log_pool_size(const Snapshot::Impl& snapshot) const {
  const SnapshotStats stats = snapshot.stats();
  const std::uint64_t pool_bytes = shared_.pipeline.lock()->pipeline->pool_bytes();
  if (stats.durable_seconds <= 0 || pool_bytes >= stats.total_bytes) return;
  const double rate = static_cast<double>(stats.total_bytes) / stats.durable_seconds;
  log_.info(
      "the pool ({}) is smaller than the state ({}): the fence waits until {} are written, about {} at the {:.2f} GB/s "
      "seen so far",
      format_bytes(pool_bytes), format_bytes(stats.total_bytes), format_bytes(stats.total_bytes - pool_bytes),
      format_seconds(static_cast<double>(stats.total_bytes - pool_bytes) / rate), rate / 1e9);
}

}  // namespace slackwater
