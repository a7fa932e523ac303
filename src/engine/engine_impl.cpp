#include "engine/engine_impl.hpp"

#include <algorithm>
#include <exception>
#include <system_error>
#include <utility>

#include "base/result.hpp"
#include "base/thread.hpp"
#include "base/units.hpp"
#include "commit/directory_coordinator.hpp"
#include "commit/store_coordinator.hpp"
#include "engine/available_memory.hpp"
#include "engine/index_of.hpp"
#include "engine/value_digests.hpp"

namespace slackwater {
namespace {

double seconds(std::chrono::nanoseconds duration) { return std::chrono::duration<double>(duration).count(); }

// Spreads consecutive numbers, so that each save looks at other places of the tensors.
std::uint64_t spread(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  return value ^ (value >> 31);
}

struct Taken {
  Capture captured;
  ReplicaDigestsOfRank replica_digests;
  bool compares_every_byte = false;
  ReplicaLook replica_look;
};

// How this rank's replicas are compared with those of others.
struct Comparison {
  std::uint64_t step = 0;
  std::optional<std::uint64_t> compared;  // ReplicaShares::list() of those of which samples will do
  ReplicaSampler& sampler;
};

// Leaves in the state what this rank writes of it. `comparison`: null if there is nobody to compare replicas with.
Result<Taken> take(State& state, Devices& devices, const std::set<std::string, std::less<>>& known_torn,
                   const CaptureOptions& options, ReplicaShares& shares, Comparison* comparison) {
  try {
    Taken taken;
    shares.study(state);
    if (comparison != nullptr) {
      taken.compares_every_byte = comparison->compared != shares.list();
      if (taken.compares_every_byte) {
        SW_ASSIGN(taken.replica_digests, digest_replicas(state, devices));
      }
      // Also then: which ranks compare every byte depends on when each of them heard of the last commit.
      if (shares.list() != 0) {
        SW_ASSIGN(taken.replica_look, comparison->sampler.look(state, devices, comparison->step));
      }
    }
    state.tensors = shares.take(std::move(state.tensors));
    SW_ASSIGN(taken.captured, capture(state, devices, known_torn, options));
    return taken;
  } catch (const std::bad_alloc&) {
    return fail(Error{.kind = ErrorKind::kOutOfMemory,
                      .message = "no memory for the copies of volatile tensors",
                      .path = {},
                      .retryable = true});
  }
}

std::unique_ptr<Coordinator> make_coordinator(const Options& options, FileSystem& fs, const Clock& clock) {
  if (options.world == 1) return nullptr;
  if (options.store) return std::make_unique<StoreCoordinator>(*options.store, clock, options.path);
  return std::make_unique<DirectoryCoordinator>(fs, clock, options.path);
}

}  // namespace

Engine::Impl::Impl(Options options, EngineParts parts, std::unique_ptr<VersionStore> versions, Catalog catalog, Log log)
    : options_(std::move(options)),
      log_(std::move(log)),
      fs_(std::move(parts.fs)),
      clock_(std::move(parts.clock)),
      files_(parts.files.value_or(RankFiles::of_world(options_.world))),
      devices_(options_.cuda_driver),
      facts_(std::make_shared<SharedFacts>()),
      coordinator_(make_coordinator(options_, *fs_, *clock_)),
      fleet_(coordinator_
                 ? std::make_unique<Fleet>(FleetOptions{.rank = options_.rank,
                                                        .world = options_.world,
                                                        .fan_in = options_.fan_in,
                                                        .timeout = options_.commit_timeout,
                                                        .files = files_,
                                                        // Who waits for a rank that writes has not stalled.
                                                        .on_heartbeat = [facts = facts_] { facts->note_progress(); }},
                                           *coordinator_, *fs_, *clock_)
                 : nullptr),
      versions_(std::move(versions)),
      counting_(catalog.counting()),
      fork_guard_([facts = facts_.get()] { facts->disowned.store(true, std::memory_order_release); }) {
  if (fleet_ && options_.on_busy == OnBusy::kSkip) turns_.emplace(options_.in_flight);
  for (const CatalogEntry& entry : catalog.entries) {
    if (entry.belongs() && entry.state == VersionState::kUnreadable) unreadable_.push_back(entry.name);
  }
  set_aside_ = catalog.set_aside();
  if (options_.rank == 0) cleaner_ = std::make_unique<Cleaner>([this](Need need) { clean_up(need); });
}

Engine::Impl::~Impl() = default;

Status Engine::Impl::usable() const {
  if (disowned()) return fail(disowned_error());
  std::lock_guard lock(mutex_);
  if (closed_) return fail(closed_error());
  return {};
}

Error Engine::Impl::closed_error() const {
  return Error{.kind = ErrorKind::kClosed,
               .message = "the checkpointer is closed; open it again to go on",
               .path = options_.path};
}

Result<std::optional<Snapshot>> Engine::Impl::save(std::uint64_t step, State state) {
  const auto began = Instant::now();
  SW_TRY(usable());
  SW_TRY(check_state(state));

  Snapshot::Impl::Spec spec{.step = step,
                            .save_began = began,
                            .stall_timeout = options_.stall_timeout,
                            .sealed_by_caller = state.sealed_by_caller,
                            .tensor_count = state.tensors.size()};
  std::set<std::string, std::less<>> known_torn;
  std::optional<std::uint64_t> compared;
  {
    Lock lock(mutex_);
    if (closed_) return fail(closed_error());
    SW_TRY(check_step(step));
    // Before anything can go wrong with this step: whatever comes of it, what was there goes on counting.
    if (!attempt_ && to_adopt_.empty() && !last_step_) {
      for (const VersionInfo& version : counting_) to_adopt_.push_back(name_of(version));
      to_adopt_.insert(to_adopt_.end(), unreadable_.begin(), unreadable_.end());
    }
    if (active_.empty()) facts_->note_progress();  // an idle engine has not stalled
    if (turns_) {
      // What is in flight here does not count: all ranks save the steps that rank 0 gives them, and no other.
      if (!turns_->take(step, clock_->now())) {
        ++stats_.snapshots_skipped;
        return std::optional<Snapshot>();
      }
    } else if (active_.size() >= options_.in_flight) {
      if (options_.on_busy == OnBusy::kSkip && !state.never_skip) {
        ++stats_.snapshots_skipped;
        return std::optional<Snapshot>();
      }
      const bool room = wait_for_room(lock);
      spec.busy_seconds = seconds(Instant::now() - began);
      if (closed_) return fail(closed_error());
      if (!room) {
        lock.unlock();
        Error error{.kind = ErrorKind::kTimeout,
                    .message = fmt::format("step {} was not captured: earlier snapshots have made no progress for {}",
                                           step, format_seconds(seconds(options_.stall_timeout))),
                    .path = options_.path,
                    .retryable = true};
        return accept_failed(spec, std::move(error));
      }
    }
    facts_->note_progress();  // this snapshot has not stalled, however long an earlier one takes to sync
    known_torn = known_torn_;
    if (!options_.paranoid) compared = replicas_compared_;
  }

  // Nothing but this thread changes the state until save() returns: take what cannot be taken later.
  const CaptureOptions capture_options{.seed = spread(++saves_), .whole_fingerprint = options_.paranoid};
  Comparison comparison{.step = step, .compared = compared, .sampler = replica_sampler_};
  Result<Taken> taken =
      take(state, devices_, known_torn, capture_options, replica_shares_, fleet_ ? &comparison : nullptr);
  if (!taken) {
    Error error = std::move(taken).error();
    // Misuse is the caller's; trouble with a device or with memory is this snapshot's alone.
    if (error.kind != ErrorKind::kDevice && error.kind != ErrorKind::kOutOfMemory) {
      std::lock_guard lock(mutex_);
      end_turn(false);
      return fail(std::move(error));
    }
    error.message = fmt::format("step {} was not captured: {}", step, error.message);
    return accept_failed(spec, std::move(error));
  }
  spec.at_once_bytes = taken->captured.at_once_size_bytes;
  const bool needs_fence = taken->captured.needs_fence;
  const std::vector<StreamRef> after = needs_fence ? state.after : std::vector<StreamRef>();

  std::optional<Error> threads_error;
  auto snapshot = std::make_shared<Snapshot::Impl>(spec, facts_);
  auto voyage = std::make_shared<Voyage>();
  voyage->snapshot = snapshot;
  voyage->to_pin = state.pin;
  voyage->state = std::move(state);
  voyage->captured = std::move(taken->captured);
  voyage->replicas = replica_shares_.list();
  voyage->replica_digests = std::move(taken->replica_digests);
  voyage->compares_every_byte = taken->compares_every_byte;
  voyage->replica_look = std::move(taken->replica_look);
  snapshot->set_cancel([this, weak = std::weak_ptr(voyage)](const Error& error) {
    if (const auto self = weak.lock()) give_up(self, error);
  });
  {
    // The capture may have taken long, and close() may have come and gone meanwhile. Here is where a step is accepted: from now on close()
    // waits for it or names it.
    std::lock_guard lock(mutex_);
    if (closed_) {
      end_turn(false);
      return fail(closed_error());
    }
    last_step_ = step;
    if (auto started = start_threads(); !started) {
      threads_error = std::move(started).error();
    } else {
      active_.push_back(voyage);
      to_plan_.push_back(std::move(voyage));
    }
  }
  if (threads_error) return accept_failed(spec, std::move(*threads_error));
  changed_.notify_all();
  if (needs_fence) static_cast<void>(snapshot->fence(after));  // its outcome stays in the snapshot
  snapshot->finish_save();
  return std::optional<Snapshot>(Snapshot(std::move(snapshot)));
}

Status Engine::Impl::check_step(std::uint64_t step) const {
  if (last_step_ && step <= *last_step_) {
    return fail(
        ErrorKind::kInvalidArgument,
        fmt::format("step {} cannot be saved after step {}: steps must grow; to go back, restore(step=...) first", step,
                    *last_step_),
        options_.path);
  }
  if (last_step_) return {};
  // A fresh start must not bury checkpoints that nobody looked at.
  std::optional<std::uint64_t> newest;
  for (const VersionInfo& version : counting_) newest = std::max(newest.value_or(0), version.step);
  for (const VersionName& version : unreadable_) newest = std::max(newest.value_or(0), version.step);
  if (newest && *newest >= step) {
    return fail(ErrorKind::kInvalidArgument,
                fmt::format("step {} cannot be saved: the directory holds checkpoints up to step {} that this run did "
                            "not restore; call "
                            "restore() first, or use another directory",
                            step, *newest),
                options_.path);
  }
  return {};
}

bool Engine::Impl::wait_for_room(Lock& lock) {
  while (!closed_ && active_.size() >= options_.in_flight) {
    const auto patience = options_.stall_timeout - facts_->still_for();
    if (patience <= Instant::duration::zero()) return false;
    changed_.wait_for(lock, patience);
  }
  return true;
}

std::shared_ptr<Snapshot::Impl> Engine::Impl::failed_snapshot(const Snapshot::Impl::Spec& spec, Error error,
                                                              WhenClosed when_closed) {
  auto snapshot = std::make_shared<Snapshot::Impl>(spec, facts_);
  snapshot->fail(error);
  snapshot->release_sources();
  snapshot->finish_save();
  {
    std::lock_guard lock(mutex_);
    if (closed_ && when_closed == WhenClosed::kRefuse) {
      end_turn(false);
      return nullptr;
    }
    if (when_closed == WhenClosed::kRefuse) last_step_ = spec.step;
    if (fleet_ && start_threads()) {
      // The other ranks wait for this step: it goes the way of any other, so that the commit thread can tell them.
      auto voyage = std::make_shared<Voyage>();
      voyage->snapshot = snapshot;
      active_.push_back(voyage);
      to_plan_.push_back(std::move(voyage));
      changed_.notify_all();
      return snapshot;
    }
    add_failure(unreported_, error, spec.step);
    ++stats_.snapshots_failed;
    end_turn(false);
  }
  log_.error("{}", error.to_string());
  return snapshot;
}

Result<std::optional<Snapshot>> Engine::Impl::accept_failed(const Snapshot::Impl::Spec& spec, Error error) {
  auto snapshot = failed_snapshot(spec, std::move(error));
  if (!snapshot) return fail(closed_error());
  return std::optional<Snapshot>(Snapshot(std::move(snapshot)));
}

Status Engine::Impl::start_threads() {
  try {
    if (!plan_thread_.joinable()) {
      plan_thread_ = start_thread("sw-plan", [this](std::stop_token stop) { plan_loop(std::move(stop)); });
    }
    if (!commit_thread_.joinable()) {
      commit_thread_ = start_thread("sw-commit", [this](std::stop_token stop) { commit_loop(std::move(stop)); });
    }
    if (cleaner_) cleaner_->start();
    if (turns_ && !turn_thread_.joinable()) {
      turn_thread_ = start_thread("sw-turn", [this](std::stop_token stop) { turn_loop(std::move(stop)); });
    }
  } catch (const std::system_error& trouble) {
    return fail(Error{
        .kind = ErrorKind::kOutOfMemory,
        .message = fmt::format(
            "the engine's threads could not be started ({}); raise the limit of processes (ulimit -u)", trouble.what()),
        .path = {},
        .sys_errno = trouble.code().value(),
        .retryable = true});
  }
  return {};
}

void Engine::Impl::plan_loop(std::stop_token stop) {
  while (true) {
    std::shared_ptr<Voyage> voyage;
    {
      Lock lock(mutex_);
      if (!changed_.wait(lock, stop, [&] { return !to_plan_.empty(); })) return;
      voyage = std::move(to_plan_.front());
      to_plan_.pop_front();
    }
    Status status;
    try {
      status = plan(voyage, stop);
    } catch (const std::exception& trouble) {  // no memory, no more threads: this snapshot is lost, training is not
      status = fail(ErrorKind::kOutOfMemory,
                    fmt::format("step {} could not be planned: {}", voyage->snapshot->step(), trouble.what()));
    }
    if (!status) {
      voyage->snapshot->fail(status.error());
      voyage->state.owner.reset();
      voyage->snapshot->release_sources();
      arrive(*voyage);
    }
  }
}

Status Engine::Impl::plan(const std::shared_ptr<Voyage>& voyage, const std::stop_token& stop) {
  const std::uint64_t step = voyage->snapshot->step();
  SW_TRY(ensure_attempt(*voyage, stop));
  if (const auto error = voyage->snapshot->error()) return fail(*error);
  // Without versions_mutex_: the commit thread may hold it over syncs and deletions of an earlier step, and the copies
  // of this one must not wait for that. make_version() asks for no more than the attempt, which only this thread claims.
  SW_ASSIGN(voyage->directory, with_room([&] { return versions_->make_version(step); }));
  SW_ASSIGN(
      SnapshotLayout layout,
      plan_layout(voyage->state,
                  {.step = step, .attempt = voyage->attempt.number, .rank = options_.rank, .world = options_.world},
                  kMaxHeaderBytes, files_.directory(options_.rank)));
  voyage->layout = std::make_shared<const SnapshotLayout>(std::move(layout));
  voyage->snapshot->set_total(voyage->layout->size_bytes);
  SW_TRY(ensure_pipeline(*voyage->layout));
  const auto on_arrived = [this, voyage = voyage.get()] { arrive(*voyage); };
  {
    std::lock_guard lock(voyage->mutex);  // whoever gives it up finds it either not launched at all or under way
    if (voyage->given_up) return fail(voyage->snapshot->error().value_or(Error{}));
    SW_TRY(pipeline_->launch(voyage, on_arrived, room_maker()));
    voyage->launched = true;
  }
  // While the bytes move: the index follows from the layout alone.
  if (const Status indexed = make_index(*voyage); !indexed) {  // copies are under way: it ends as any other that failed
    voyage->snapshot->fail(indexed.error());
    pipeline_->cancel(*voyage, indexed.error());
  }
  voyage->end_one(on_arrived);
  return {};
}

Status Engine::Impl::make_index(Voyage& voyage) const {
  try {
    const std::vector<IndexEntry> entries =
        index_of(voyage.state, *voyage.layout, fleet_ ? std::optional(options_.rank) : std::nullopt);
    voyage.tensor_count = entries.size();
    voyage.index_text = serialize_index(entries);
    if (!fleet_) return check_complete(entries);  // of several, the leader sees whether their parts make a whole
    voyage.value_digests = digest_values(voyage.job->tree);
    voyage.replicated_values = digest_leaves(voyage.state.replicated_values);
    return {};
  } catch (const std::exception& trouble) {
    return fail(ErrorKind::kOutOfMemory,
                fmt::format("step {} could not be indexed: {}", voyage.name.step, trouble.what()));
  }
}

// The attempt this voyage goes on under; claimed, or learned of, at the first.
Status Engine::Impl::ensure_attempt(Voyage& voyage, const std::stop_token& stop) {
  const std::uint64_t step = voyage.snapshot->step();
  std::vector<VersionName> adopted;
  std::vector<SetAside> set_aside;
  std::uint64_t epoch = 0;
  std::uint32_t known = 0;  // had before a restore whose end this rank did not learn
  {
    std::lock_guard lock(mutex_);
    if (attempt_ && fleet_ && fleet_->unsure()) {
      known = attempt_->number;
    } else if (attempt_) {
      voyage.attempt = *attempt_;
      voyage.name = {step, attempt_->number};
      return {};
    }
    adopted = to_adopt_;
    set_aside = set_aside_;
    epoch = epoch_;
  }
  std::vector<std::string> members;
  if (fleet_) {
    SW_ASSIGN(members, fleet_->gather(stop));
    if (!fleet_->leads()) {
      SW_ASSIGN(const AnnouncedAttempt announced, fleet_->await_attempt(step, known, stop));
      voyage.name = {step, announced.number};  // from here on there is somebody to tell if it goes wrong
      if (announced.error) return fail(*announced.error);
    }
  }
  Result<Attempt> attempt;
  {
    // Whoever deletes asks whether its attempt is still the newest: not while there is none.
    const auto nobody_deletes = cleaner_ ? cleaner_->hold() : std::unique_lock<std::mutex>();
    std::lock_guard versions_lock(versions_mutex_);
    if (fleet_ && !fleet_->leads()) {
      attempt = versions_->accept(voyage.name.attempt, options_.rank, fleet_->id());
    } else if (claimed_ && claimed_->first == epoch) {
      attempt = claimed_->second;
    } else {
      attempt = versions_->claim(options_.run_name, std::move(adopted), std::move(members), std::move(set_aside),
                                  retention_policy());
    }
  }
  // Should the others not hear of it now, or not seem to: the next step tells them of the same.
  if (attempt) claimed_.emplace(epoch, *attempt);
  const Status told = fleet_ && fleet_->leads() ? fleet_->announce_attempt(step, attempt) : Status();
  if (!attempt) return fail(std::move(attempt).error());
  SW_TRY(told);
  voyage.attempt = *attempt;
  voyage.name = {step, attempt->number};
  {
    std::lock_guard lock(mutex_);
    attempt_ = std::move(*attempt);
    changed_.notify_all();
    to_adopt_.clear();
    // What a rollback left behind is not live any more.
    sweep_due_ = true;  // what it left behind may go once something was committed
    std::erase_if(counting_, [&](const VersionInfo& version) {
      return !std::ranges::binary_search(attempt_->adopted, name_of(version));
    });
  }
  if (cleaner_) cleaner_->request();  // what killed runs left behind goes before it can fill the disk for good
  return {};
}

Status Engine::Impl::ensure_pipeline(const SnapshotLayout& layout) {
  if (pipeline_) return {};
  std::uint64_t state_slabs = 0;
  for (const StreamLayout& part : layout.parts) state_slabs += part.window_count(options_.slab_bytes);
  std::uint64_t slabs = options_.pool_bytes / options_.slab_bytes;
  if (slabs == 0) {
    slabs = std::min(state_slabs, available_memory_bytes() / 4 / options_.local_ranks / options_.slab_bytes);
  }
  SW_TRY(make_pipeline(slabs));
  log_.info("the pool has {} for a state of {}; files are written with {}", format_bytes(pipeline_->pool_bytes()),
            format_bytes(layout.size_bytes), pipeline_->writer().backend());
  return {};
}

Status Engine::Impl::make_pipeline(std::uint64_t slabs) {
  const auto count = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(slabs, 2, 1u << 20));
  SW_ASSIGN(auto pipeline, Pipeline::create(*fs_, devices_, options_, count, log_));
  std::lock_guard lock(mutex_);
  pipeline_ = std::move(pipeline);
  return {};
}

void Engine::Impl::prepare_pool() {
  if (options_.pool_bytes == 0) return;  // its size follows from the first state
  const std::vector<int> active = devices_.active_cuda_devices();
  if (active.empty()) return;
  // Trouble is not reported here: whoever saves a tensor of that device gets it in full.
  if (!devices_.cuda(active.front())) return;
  static_cast<void>(make_pipeline(options_.pool_bytes / options_.slab_bytes));
}

void Engine::Impl::give_up(const std::shared_ptr<Voyage>& voyage, const Error& error) {
  {
    std::lock_guard lock(voyage->mutex);
    if (!voyage->launched) {
      voyage->given_up = true;
      voyage->snapshot->fail(error);
      voyage->snapshot->release_sources();
      return;
    }
  }
  pipeline_->cancel(*voyage, error);
}

void Engine::Impl::arrive(Voyage& voyage) {
  {
    std::lock_guard lock(mutex_);
    voyage.arrived = true;
  }
  changed_.notify_all();
}

std::vector<std::shared_ptr<Snapshot::Impl>> Engine::Impl::in_flight() const {
  std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Snapshot::Impl>> snapshots;
  for (const auto& voyage : active_) snapshots.push_back(voyage->snapshot);
  return snapshots;
}

Status Engine::Impl::wait(Level level, std::optional<std::chrono::milliseconds> timeout) {
  if (disowned()) return fail(disowned_error());
  SW_TRY(wait_idle(level, timeout));
  std::lock_guard lock(mutex_);
  if (const auto unreported = std::exchange(unreported_, std::nullopt)) return fail(unreported->in_words());
  return {};
}

// Errors of snapshots stay where they are kept; only a time-out is an Error here.
Status Engine::Impl::wait_idle(Level level, std::optional<std::chrono::milliseconds> timeout) {
  const auto deadline = Instant::now() + timeout.value_or(std::chrono::milliseconds(0));
  for (const auto& snapshot : in_flight()) {
    std::optional<std::chrono::milliseconds> left;
    if (timeout)
      left = std::max(std::chrono::milliseconds(0),
                      std::chrono::ceil<std::chrono::milliseconds>(deadline - Instant::now()));
    // Its own error is kept as the engine's background error; only a time-out ends the waiting.
    if (auto status = snapshot->wait(level, left); !status && !snapshot->error()) return status;
  }
  if (level == Level::kCommitted) {  // the commit thread clears the failed ones away, too
    Lock lock(mutex_);
    const auto idle = [&] { return active_.empty(); };
    if (!timeout)
      changed_.wait(lock, idle);
    else if (!changed_.wait_until(lock, deadline, idle))
      return fail(ErrorKind::kTimeout, "the last snapshots have ended, but were not cleared away in time",
                  options_.path);
  }
  return {};
}

Status Engine::Impl::fence(std::span<const StreamRef> streams) {
  if (disowned()) return fail(disowned_error());
  Status first;
  for (const auto& snapshot : in_flight()) {
    if (auto status = snapshot->fence(streams); !status && first) first = std::move(status);
  }
  return first;
}

void Engine::Impl::note_error(const Error& error, std::optional<std::uint64_t> step) {
  std::lock_guard lock(mutex_);
  add_failure(unreported_, error, step);
}

std::optional<Error> Engine::Impl::background_error() const {
  if (disowned()) return disowned_error();
  std::lock_guard lock(mutex_);
  if (!unreported_) return std::nullopt;
  return unreported_->first;
}

std::vector<VersionInfo> Engine::Impl::versions() const {
  if (disowned()) return {};
  if (fleet_ && !fleet_->leads()) {
    // Rank 0 makes and removes them, and only the directory tells. Without versions_mutex_, which the commit thread may
    // hold over syncs.
    const auto catalog = scan_catalog(*fs_, options_.path);
    if (catalog) return catalog->counting();
    log_.warn("the checkpoints could not be listed, those known before are answered: {}", catalog.error().to_string());
  }
  std::lock_guard lock(mutex_);
  return counting_;
}

EngineStats Engine::Impl::stats() const {
  if (disowned()) return {};
  std::lock_guard lock(mutex_);
  EngineStats stats = stats_;
  if (pipeline_ && !pipeline_stopped_) {
    stats.pool_bytes = pipeline_->pool_bytes();
    stats.bytes_written = pipeline_->writer().bytes_written();
    stats.io_backend = pipeline_->writer().backend();
    stats.direct_io = options_.direct_io && pipeline_->writer().direct();
    stats.registered_buffers = pipeline_->writer().registered_buffers();
  }
  return stats;
}

}  // namespace slackwater
