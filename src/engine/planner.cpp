#include "engine/planner.hpp"

#include <algorithm>
#include <cstddef>
#include <exception>
#include <set>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/result.hpp"
#include "base/thread.hpp"
#include "capture/value_digests.hpp"
#include "engine/committer.hpp"
#include "engine/part.hpp"
#include "engine/rank_committer.hpp"
#include "engine/skip_thread.hpp"
#include "version/delete_notes.hpp"
#include "version/index_entries.hpp"

namespace slackwater {

void Planner::start() {
  if (shared_.devices.cuda_in_use()) sampler_.start();  // save() has opened the devices of its tensors
  if (thread_.joinable()) return;
  thread_ = start_thread("sw-plan", [this](const std::stop_token& stop) { loop(stop); });
}

void Planner::stop() {
  sampler_.stop();
  thread_.request_stop();
  if (thread_.joinable()) thread_.join();
}

void Planner::loop(const std::stop_token& stop) {
  while (const std::shared_ptr<SaveJob> job = jobs_.next_to_plan(stop)) {
    Status status;
    try {
      status = plan(job, stop);
    } catch (const std::exception& trouble) {  // no memory, no more threads: this snapshot is lost, training is not
      status = fail(ErrorKind::kOutOfMemory,
                    fmt::format("step {} could not be planned: {}", job->snapshot->step(), trouble.what()));
    }
    if (!status) {
      // Nothing was launched, so nobody else will end it: it goes to sw-commit as a failed job.
      job->snapshot->fail(status.error());
      if (job->kept) job->kept->fail();  // or sw-memory, and then sw-commit, would wait for it for ever
      job->device_copies.clear();        // waits for the samples: they still read the tensors
      job->state.owner.reset();
      job->snapshot->release_sources();
      jobs_.mark_drained(*job);
    }
  }
}

Status Planner::plan(const std::shared_ptr<SaveJob>& job, const std::stop_token& stop) {
  const std::uint64_t step = job->snapshot->step();
  // The job's device copies are sw-sample's until then.
  if (!jobs_.wait_sampled(*job, stop)) return fail(jobs_.closed_error());
  // Even a step that has already failed needs the attempt, to tell the other ranks.
  if (job->state.part) {
    SW_TRY(take_place(*job));
  } else {
    SW_TRY(ensure_attempt(*job, stop));
  }
  if (const auto error = job->snapshot->error()) return fail(*error);
  // Without the store's lock: sw-commit may hold that during the syncs of an earlier step, and the copies of this one
  // must not wait for them. make_version() needs only the attempt, which only this thread claims.
  if (!job->state.part) {
    SW_ASSIGN(job->directory, cleaner_.with_room([&] { return shared_.versions.without_lock().make_version(step); }));
  }
  // Every offset is fixed before a byte moves, so that slabs can be written in any order.
  SW_ASSIGN(SnapshotLayout layout, plan_layout(job->state, job->identity(options_), kMaxHeaderBytes,
                                               job->rank_directory(shared_.files, options_)));
  job->layout = std::make_shared<const SnapshotLayout>(std::move(layout));
  job->snapshot->set_total(job->layout->size_bytes);
  watch_free_space(job->layout->size_bytes);
  // The first layout tells how large an automatic pool should be.
  SW_ASSIGN(const std::shared_ptr<Pipeline> pipeline, pipelines_.for_save(job->state, *job->layout));
  if (!job->device_copies.empty()) SW_TRY(pipeline->start_copy_waiter());
  const auto on_drained = [this, job = job.get()] { jobs_.mark_drained(*job); };
  {
    std::lock_guard lock(job->mutex);  // give_up() finds the job either not launched at all or fully launched
    if (job->given_up) return fail(job->snapshot->error().value_or(Error{}));
    pipeline->launch(job, on_drained, cleaner_.room_maker());
    job->launched = pipeline.get();
  }
  // The index follows from the layout alone, so it is made while the bytes move.
  Status indexed = make_index(*job);
  if (indexed && job->kept) indexed = plan_kept(job);
  if (!indexed) {
    job->snapshot->fail(indexed.error());  // copies are under way: they must end first
    if (job->kept) job->kept->fail();
    Pipeline::give_up(*job, indexed.error());
  }
  job->finish_operation(on_drained);  // the planner's own operation, see Pipeline::launch()
  return {};
}

// The part of a rank that somebody else coordinates: the coordinator has claimed the attempt and made the directory.
Status Planner::take_place(SaveJob& job) const {
  const PartPlace& place = *job.state.part;
  job.name = {place.step, place.attempt};
  job.attempt.number = place.attempt;
  job.attempt.run = place.run;
  job.attempt.world = place.world;
  SW_ASSIGN(job.directory, prepare_directory(*shared_.fs, place));
  return {};
}

// Sets the attempt of this save job. The first job after open or a restore claims it, or learns it from rank 0.
Status Planner::ensure_attempt(SaveJob& job, const std::stop_token& stop) {
  const std::uint64_t step = job.snapshot->step();
  std::uint32_t known = 0;  // the attempt before a restore whose end this rank did not learn
  // In this order: a restore that ends in between changes the attempt before it clears this flag.
  const bool unsure = protocol_ != nullptr && protocol_->unsure();
  if (std::optional<Attempt> current = live_.lock()->attempt()) {
    if (!unsure) {
      job.name = {step, current->number};
      job.attempt = std::move(*current);
      return {};
    }
    known = current->number;
  }
  LiveVersions::Start start = live_.lock()->start();
  std::string memory_id;
  if (shared_.memory)
    memory_id = shared_.memory->begin_attempt(start.epoch, protocol_ != nullptr ? protocol_->id() : std::string());
  // Rank 0 claims the attempt for all and lists the others in it. They wait for its announcement.
  std::vector<std::string> members;
  std::string attempt_text;  // if each node has a directory of its own
  if (protocol_ != nullptr) {
    SW_ASSIGN(members, protocol_->rendezvous(stop));
    if (!protocol_->is_rank_0()) {
      SW_ASSIGN(const AnnouncedAttempt announced, protocol_->await_attempt(step, known, stop));
      job.name = {step, announced.number};  // from here on this rank can tell the others if it fails
      if (announced.error) return fail(*announced.error);
      attempt_text = announced.text;
    }
  }
  // One number for all tiers: above the newest of each that can be reached.
  Promotions::Survey below;
  if (options_.rank == 0 && !(claimed_ && claimed_->first == start.epoch)) below = survey_below(start);
  if (shared_.memory) {
    if (members.empty()) members.push_back(memory_id);
    shared_.memory->settle_adopted(start.adopted);
  }
  Result<Attempt> attempt;
  {
    // The cleaner checks that its attempt is the newest before it deletes. It must not run while that changes.
    const auto nobody_deletes = cleaner_.block_deletes();
    attempt = shared_.versions.exclusive([&](VersionStore& versions) -> Result<Attempt> {
      if (protocol_ != nullptr && !protocol_->is_rank_0())
        return accept(versions, job.name.attempt, attempt_text, start);
      if (claimed_ && claimed_->first == start.epoch) return claimed_->second;
      SW_TRY(add_unseen(versions, start));
      SW_TRY(keep_restored(start));
      return versions.attempt().claim(options_.run_name, std::move(start.adopted), std::move(members),
                                      std::move(start.set_aside), shared_.retention,
                                      std::max(below.newest_attempt, shared_.newest_attempt_seen.load()),
                                      std::move(start.continued.left_behind));
    });
  }
  // Kept, in case the announcement fails or seems to: the next step then announces the same attempt.
  if (attempt) claimed_.emplace(start.epoch, *attempt);
  Status told;
  if (protocol_ != nullptr && protocol_->is_rank_0()) told = protocol_->announce_attempt(step, attempt);
  if (!attempt) return fail(std::move(attempt).error());
  SW_TRY(told);
  job.attempt = *attempt;
  job.name = {step, attempt->number};
  {
    // Under one lock: a restore that ends in between must see both changes or neither.
    const auto live = live_.lock();
    live->begin_attempt(*attempt);
    shared_.promotions.begin_attempt(*attempt, start.continued.step);
    if (shared_.turns) shared_.turns->begin_attempt(attempt->number);
  }
  cleaner_.request();  // removes what killed runs left behind, before it can fill the disk
  return {};
}

namespace {

// Adds what a tier has, and tells the user what of it is set aside.
void adopt_and_tell(const Adoption& adoption, const std::string& place, LiveVersions::Start& start, const Log& log) {
  const auto before = static_cast<std::ptrdiff_t>(start.set_aside.size());
  add_adopted(start.adopted, start.set_aside, adoption);
  const std::vector<SetAside> added(start.set_aside.begin() + before, start.set_aside.end());
  for (const std::string& sentence : sentences_on_kept(added, place)) log.warn("{}", sentence);
}

}  // namespace

Promotions::Survey Planner::survey_below(LiveVersions::Start& start) {
  Promotions::Survey below = shared_.promotions.survey(start.continued);
  adopt_and_tell(below.adoption, "a lower tier", start, log_);
  return below;
}

// A restore that could not reach tier 0 does not know what is there, and nobody asked to go back behind that. Until it
// can be read, there is no attempt, and so no checkpoint.
Status Planner::add_unseen(VersionStore& versions, LiveVersions::Start& start) {
  if (!start.seen_without_tier_0) return {};
  auto there = versions.scan_cached();
  if (!there) {
    there.error().message = fmt::format(
        "steps are not saved until the directory can be read: it was out of reach when step {} was restored, and may "
        "hold other checkpoints ({})",
        start.continued.step.value_or(0), there.error().message);
    return fail(std::move(there).error());
  }
  const Adoption adoption =
      adopt_from_tier_0(*there, *shared_.fs, options_.path, *start.seen_without_tier_0, start.continued, start.adopted);
  adopt_and_tell(adoption, options_.path, start, log_);
  return {};
}

// The restore may have chosen a version that was deleted, because tier 0 or its notes could not be read then. This run
// goes on from it, so a tier that has not followed must not do so any more. Before the attempt that adopts it: a crash
// in between leaves the version live, and never a run without what it goes on from.
Status Planner::keep_restored(const LiveVersions::Start& start) const {
  if (!start.restored || shared_.tiers.empty()) return {};
  const VersionName& version = start.restored->name;
  auto kept = take_back_delete(*shared_.fs, options_.path, version, start.restored->run);
  if (!kept) {
    kept.error().message = fmt::format(
        "steps are not saved until it is known whether step {} was deleted, because this run continues from it ({})",
        version.step, kept.error().message);
    return fail(std::move(kept).error());
  }
  if (!kept->empty()) {
    log_.warn(
        "step {} (attempt {}) was deleted, but the note of that could not be read when it was restored; this run goes "
        "on from it, so it is not deleted on {}",
        version.step, version.attempt, fmt::join(*kept, " and "));
  }
  return {};
}

// One rank for each directory warns before the disk is full. A disk that does not tell its free space is not watched:
// the save itself says what is wrong with it.
void Planner::watch_free_space(std::uint64_t own_bytes) {
  if (!shared_.leads_node || options_.path.empty()) return;
  const auto free_bytes = shared_.fs->free_bytes(options_.path);
  if (!free_bytes) return;
  // Until a version of all ranks is there to tell. On a directory of this node alone there is only this node's share.
  std::uint64_t version_bytes = own_bytes * (options_.node_local ? options_.local_ranks : options_.world);
  std::uint64_t present = jobs_.snapshots().size() - 1;  // this one is in flight too
  const std::set<VersionName> held = shared_.held();
  {
    const auto live = live_.lock();
    const auto& versions = live->list();
    if (options_.world > 1 && !options_.node_local && !versions.empty()) version_bytes = versions.back().size_bytes;
    // What is beyond keep goes, is pinned, or waits for a lower tier.
    const std::size_t kept = std::min<std::size_t>(versions.size(), options_.keep);
    present += kept;
    for (std::size_t i = 0; i + kept < versions.size(); ++i) present += held.contains(name_of(versions[i])) ? 1 : 0;
  }
  if (const auto warning = space_.check(*free_bytes, version_bytes, present))
    log_.warn("{}: {}", *warning, options_.path);
}

// On the other ranks. If this node has a directory of its own, the attempt that rank 0 sent is placed there first, and
// one rank of the node deletes there from now on.
Result<Attempt> Planner::accept(VersionStore& versions, std::uint32_t number, const std::string& text,
                                const LiveVersions::Start& start) {
  if (options_.node_local && versions.attempt().lead_node()) SW_TRY(keep_restored(start));
  if (!text.empty()) SW_TRY(versions.attempt().place(text));
  SW_ASSIGN(Attempt attempt, versions.attempt().accept(number, options_.rank, protocol_->id()));
  if (options_.node_local && versions.attempt().lead_node()) {
    cleaner_.begin_deleting();
    shared_.leads_node = true;
  }
  return attempt;
}

// An exception must not leave plan() any more: the copies are under way, and use the job.
Status Planner::plan_kept(const std::shared_ptr<SaveJob>& job) const {
  try {
    job->kept->set_plan(kept_plan(job));
    return {};
  } catch (const std::exception& trouble) {
    return fail(ErrorKind::kOutOfMemory,
                fmt::format("step {} could not be described for the keeper: {}", job->name.step, trouble.what()));
  }
}

// All that sw-memory must know to publish this version.
KeptPlan Planner::kept_plan(const std::shared_ptr<SaveJob>& job) const {
  KeptPlan plan{
      .member = job->attempt.members.at(options_.rank),
      .record = record_of(shared_, *job),
      .index = {},
      .manifest = protocol_ != nullptr ? manifest_of(shared_, *job, Decision::kCommit) : manifest_alone(shared_, *job)};
  if (protocol_ == nullptr) {
    plan.index = job->index_text;
    return plan;
  }
  // Weak: the plan belongs to the job. A job that is gone was committed, or has failed.
  plan.add_vote = [weak = std::weak_ptr(job), index = job->index_text](const RecordReference& record,
                                                                       StagedVersion& version) -> Status {
    const auto self = weak.lock();
    if (!self) return fail(ErrorKind::kAborted, "the step ended before it could be kept in memory");
    SW_ASSIGN(const Vote vote, make_vote(*self, record, index));
    Message message = to_message(vote);
    version.vote = message.body.dump();
    version.index = std::move(message.attachment);
    return {};
  };
  return plan;
}

Status Planner::make_index(SaveJob& job) const {
  try {
    const std::vector<IndexEntry> entries = index_entries(
        job.state, *job.layout,
        protocol_ != nullptr || job.state.part ? std::optional(job.identity(options_).rank) : std::nullopt);
    job.tensor_count = entries.size();
    job.index_text = serialize_index(entries);
    // With several ranks, rank 0 checks that their parts make a whole.
    if (job.state.part) return {};  // so does the coordinator of parts
    if (protocol_ == nullptr) return check_complete(entries);
    job.value_digests = digest_values(job.state.values, job.stage_job->tree);
    job.state.values.clear();  // as large as the tree: not kept until the commit
    job.replicated_values = digest_leaves(job.state.replicated_values);
    return {};
  } catch (const std::exception& trouble) {
    return fail(ErrorKind::kOutOfMemory,
                fmt::format("step {} could not be indexed: {}", job.name.step, trouble.what()));
  }
}

}  // namespace slackwater
