#include "engine/restorer.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "capture/pinned_tensors.hpp"
#include "engine/skip_thread.hpp"
#include "restore/checkpoint_reader.hpp"
#include "restore/read_plan.hpp"

namespace slackwater {
namespace {

constexpr const char* kUndefinedState = "; the state was partly overwritten and is undefined";

// Reads in flight hide the latency of storage. From the pool, which exists already, restore may take more.
constexpr std::uint64_t kRestoreBufferBytes = 48u << 20;
constexpr std::uint64_t kRestoreFromPoolBytes = 128u << 20;

// A name in `placed` that `targets` would leave as it is.
std::optional<std::string> not_covered(std::set<std::string> placed, const std::vector<Target>& targets) {
  for (const Target& target : targets) placed.erase(target.name);
  if (placed.empty()) return std::nullopt;
  return *placed.begin();
}

bool is_refusal(const Error& error) {
  return error.kind == ErrorKind::kMismatch || error.kind == ErrorKind::kInvalidArgument ||
         error.kind == ErrorKind::kUnsupported;
}

// The bytes are not those that were saved, or are gone: another version may be whole. Storage that cannot be read is
// not damage; it may be readable tomorrow.
bool is_damage(const Error& error) { return error.kind == ErrorKind::kCorrupt; }

// Versions that may be tried, oldest first. They include versions whose manifest cannot be read, so that none is passed
// over silently. A version that was set aside is tried only if its step is asked for and no live version has it.
std::vector<CatalogEntry> restorable(const Catalog& catalog, std::optional<std::uint64_t> step) {
  std::vector<CatalogEntry> candidates;
  std::vector<CatalogEntry> aside;
  for (const CatalogEntry& entry : catalog.entries) {
    if (step && entry.name.step != *step) continue;
    if (entry.adoptable()) candidates.push_back(entry);
    if (step && entry.state == VersionState::kSetAside) aside.push_back(entry);
  }
  return candidates.empty() ? aside : candidates;
}

// Adds versions that are in the keeper's memory, or replaces their entries: the memory knows them to be good.
void add_from_memory(std::vector<CatalogEntry>& candidates, std::vector<CatalogEntry> in_memory,
                     std::optional<std::uint64_t> step) {
  for (CatalogEntry& entry : in_memory) {
    if (step && entry.name.step != *step) continue;
    std::erase_if(candidates, [&](const CatalogEntry& each) { return each.name == entry.name; });
    candidates.push_back(std::move(entry));
  }
  std::ranges::sort(candidates, {}, &CatalogEntry::name);
}

std::vector<SetAside> set_aside_of(const RestoreProtocol::Choice& choice) {
  std::vector<SetAside> versions;
  for (std::size_t i = 0; i < choice.passed_over.size(); ++i)
    versions.push_back({choice.passed_over[i], i < choice.damaged.size() ? choice.damaged[i] : ""});
  return versions;
}

// The ranks whose files hold the targets' bytes.
std::vector<std::uint32_t> saved_by(const Checkpoint& checkpoint, const std::vector<Target>& targets) {
  std::set<std::uint32_t> ranks;
  const auto plan = ReadPlan::make(checkpoint.tensors(), targets);
  if (!plan) return {};  // read() says what is wrong
  for (const FileExtent& stored : plan->stored()) ranks.insert(checkpoint.files()[stored.file].rank);
  return {ranks.begin(), ranks.end()};
}

}  // namespace

std::string listed(const std::vector<VersionInfo>& versions) {
  std::string text;
  for (const VersionInfo& version : versions) text += fmt::format("{}{}", text.empty() ? "" : ", ", version.step);
  return text.empty() ? "none" : text;
}

Result<std::optional<Restored>> Restorer::restore(const RestoreOptions& options, const Plan& plan) {
  if (shared_.disowned()) return fail(disowned_error());
  // Under the lock that close() takes when it begins. So close() knows of this call, and lets it leave the other ranks.
  const auto begin_call = [&] {
    std::lock_guard lock(mutex_);
    ++restoring_;
  };
  if (!shared_.jobs.unless_closed(begin_call)) return fail(shared_.jobs.closed_error());
  struct Call {
    Restorer& self;
    ~Call() { self.end_call(); }
  } const call{*this};
  // A job in flight may become the newest version.
  SW_TRY(shared_.jobs.wait_idle(Level::kCommitted, {}));
  // A version that is being deleted must not be chosen, and the chosen one must not be deleted.
  if (!shared_.cleaner.wait_idle({})) return fail(ErrorKind::kInternal, "the cleaner did not finish", options_.path);
  RestoreSource source(shared_, shared_.lower_tiers(), probes_);
  return protocol_ != nullptr ? restore_together(source, options, plan) : restore_alone(source, options, plan);
}

bool Restorer::request_stop() {
  const bool probed = probes_.request_stop();
  const bool compared = shared_.late_probes == nullptr || shared_.late_probes->request_stop();
  return repairs_.request_stop() && probed && compared;
}

void Restorer::stop() {
  repairs_.stop();
  probes_.stop();
  if (shared_.late_probes) shared_.late_probes->stop();
}

void Restorer::end_call() {
  bool leave = false;
  {
    std::lock_guard lock(mutex_);
    leave = --restoring_ == 0 && std::exchange(leave_to_restore_, false);
  }
  if (leave) shared_.transport->leave();
}

void Restorer::leave_ranks() {
  if (!shared_.transport) return;
  {
    std::lock_guard lock(mutex_);
    leave_to_restore_ = restoring_ > 0;
    if (leave_to_restore_) return;
  }
  shared_.transport->leave();
}

Result<std::optional<Restored>> Restorer::nothing(const RestoreOptions& options, const Catalog& catalog) const {
  if (!options.step) return std::optional<Restored>();
  return fail(
      ErrorKind::kNotFound,
      fmt::format("there is no checkpoint of step {}; there are: {}", *options.step, listed(catalog.live_versions())),
      options_.path);
}

Result<Restorer::Candidates> Restorer::candidates(RestoreSource& source, std::optional<std::uint64_t> step) {
  Candidates found;
  SW_ASSIGN(found.catalog, source.scan());
  found.versions = restorable(found.catalog, step);
  if (shared_.memory) add_from_memory(found.versions, shared_.memory->versions(found.catalog), step);
  return found;
}

Result<Restorer::Candidates> Restorer::candidates_in_memory(RestoreSource& source, std::optional<std::uint64_t> step) {
  Candidates found;
  if (!shared_.memory || shared_.tiers.empty()) return found;
  SW_ASSIGN(found.catalog, source.scan_tier_0());
  // What is there belongs to the newest attempt of tier 0.
  std::vector<CatalogEntry> in_memory = shared_.memory->versions(found.catalog);
  if (in_memory.empty()) return found;
  // Perhaps the run went on elsewhere, and this machine's memory is of an earlier time. A tier that does not answer at
  // once may know of that too: then the next claim finds it out, sets its versions aside, and says so.
  const std::uint32_t attempt = found.catalog.newest_attempt ? found.catalog.newest_attempt->number : 0;
  if (source.newer_below(attempt)) return found;
  const VersionName newest = std::ranges::max(in_memory, {}, &CatalogEntry::name).name;
  found.versions = restorable(found.catalog, step);
  add_from_memory(found.versions, std::move(in_memory), step);
  found.from_memory = !found.versions.empty() && found.versions.back().name == newest;
  return found;
}

Result<std::optional<Restored>> Restorer::restore_alone(RestoreSource& source, const RestoreOptions& options,
                                                        const Plan& plan) {
  SW_ASSIGN(Candidates found, candidates_in_memory(source, options.step));
  if (!found.from_memory) {
    SW_ASSIGN(found, candidates(source, options.step));
  }
  const Catalog& catalog = found.catalog;
  if (found.versions.empty()) {
    if (auto unreachable = source.unreachable_tier_error()) return fail(std::move(*unreachable));
    return nothing(options, catalog);
  }

  Restored restored;
  Placing placing;
  std::vector<SetAside> passed_over;
  std::set<VersionName> tried;
  while (!found.versions.empty()) {
    const CatalogEntry entry = std::move(found.versions.back());
    found.versions.pop_back();
    if (!tried.insert(entry.name).second) continue;
    const auto known = std::ranges::find(options.passed_over, entry.name.step, &PassedOver::step);
    auto status = known == options.passed_over.end() ? place_version(source, entry, options, plan, placing)
                                                     : Status(fail(ErrorKind::kCorrupt, known->why));
    if (status) {
      restored.version = entry.info;
      use_restored(entry.info, {.catalog = catalog,
                                .passed_over = passed_over,
                                .step_asked_for = options.step.has_value(),
                                .tier_0 = source.reached_tier_0()});
      if (!found.from_memory) begin_repair(source, entry.info);
      return std::optional<Restored>(std::move(restored));
    }
    if (placing.refusal) {
      if (placing.began) placing.refusal->message += kUndefinedState;
      return fail(*placing.refusal);
    }
    if (!is_damage(status.error()) || options_.on_damage == OnDamage::kRaise || options.step) {
      Error error = status.error();
      if (placing.began) error.message += kUndefinedState;
      return fail(std::move(error));
    }
    log_.error("step {} is damaged and is passed over: {}", entry.name.step, status.error().to_string());
    // What was only in memory leaves nothing behind that could be set aside.
    if (std::ranges::find(catalog.entries, entry.name, &CatalogEntry::name) != catalog.entries.end())
      passed_over.push_back({entry.name, status.error().to_string()});
    restored.damaged.push_back(fmt::format("step {}: {}", entry.name.step, status.error().to_string()));
    if (found.from_memory) {  // the next one may be on a lower tier
      SW_ASSIGN(found, candidates(source, options.step));
    }
  }

  std::string all;
  for (const std::string& damage : restored.damaged) all += "\n  " + damage;
  return fail(ErrorKind::kCorrupt,
              fmt::format("no checkpoint could be restored{}:{}", placing.began ? kUndefinedState : "", all),
              options_.path);
}

// Places one version: from memory if it is there, and if that copy cannot be used, from the tiers. As long as another
// tier has the file that was damaged or could not be read, the same version is tried again. Only that file then comes
// from there.
Status Restorer::place_version(RestoreSource& source, const CatalogEntry& entry, const RestoreOptions& options,
                               const Plan& plan, Placing& placing) {
  std::optional<Status> in_memory;
  if (FileSystem* const memory = shared_.memory ? shared_.memory->files_of(entry.name) : nullptr) {
    in_memory = place_from(*memory, nullptr, entry, options, plan, placing);
    if (*in_memory) log_.info("step {} was restored from the keeper's memory", entry.name.step);
    if (*in_memory || placing.refusal || is_refusal(in_memory->error())) return *in_memory;
    log_.error("the copy of step {} in the keeper's memory is damaged; it is read from disk: {}", entry.name.step,
               in_memory->error().to_string());
  }
  for (;;) {
    Status status = place_from(source.fs(), &source, entry, options, plan, placing);
    if (status || placing.refusal) return status;
    if (source.move_on(entry.name, status.error(), placing.on_progress)) continue;
    // It never came to disk, so there is nothing to be lost: the version before it is the newest.
    if (in_memory && status.error().kind == ErrorKind::kNotFound) return *in_memory;
    return fail(source.explain(std::move(status).error()));
  }
}

// Opens one version, asks the caller where its tensors go, and reads them into place. `source` may bring what several
// ranks need to tier 0 first; there is none for the keeper's memory.
Status Restorer::place_from(FileSystem& fs, RestoreSource* source, const CatalogEntry& entry,
                            const RestoreOptions& options, const Plan& plan, Placing& placing) {
  const auto refuse = [&](Error error) {
    placing.refusal = error;
    return fail(std::move(error));
  };
  placing.on_progress();
  if (entry.error) return fail(*entry.error);
  const auto lender = shared_.pipeline.lock()->idle();
  const ReaderDependencies parts{.fs = &fs,
                                 .pool = lender ? &lender->pool() : nullptr,
                                 .devices = &shared_.devices,
                                 .viewer = Viewer{.rank = options_.rank, .world = options_.world},
                                 .on_progress = placing.on_progress};
  const ReadOptions read_options{.buffer_bytes = parts.pool != nullptr ? kRestoreFromPoolBytes : kRestoreBufferBytes,
                                 .io_backend = options_.io_backend,
                                 .direct_io = options_.direct_io,
                                 .log = options_.log};
  // Opening reads a header: of what this rank saved, or of rank 0.
  if (source != nullptr)
    source->fetch(entry.name, {entry.info.world == options_.world ? options_.rank : 0}, placing.on_progress);
  SW_ASSIGN(Checkpoint checkpoint, open_version(parts, options_.path, entry.info, read_options));
  placing.on_progress();
  auto targets = plan(checkpoint);
  placing.on_progress();
  if (!targets) return refuse(std::move(targets).error());
  if (const auto left = not_covered(placing.placed, *targets)) {
    return refuse(
        {ErrorKind::kCorrupt,
         fmt::format("a damaged version was partly placed, and step {} does not have tensor '{}' to replace it",
                     entry.name.step, *left),
         options_.path, 0, false, *left});
  }
  if (auto ready = wait_for_targets(*targets, options.after); !ready) return refuse(std::move(ready).error());
  if (source != nullptr && source->fetches())
    source->fetch(entry.name, saved_by(checkpoint, *targets), placing.on_progress);
  // What is restored now will be saved next, and its pool is touched while this thread reads.
  pipelines_.foresee(*targets);
  auto read = checkpoint.read(*targets);
  if (!read && is_refusal(read.error())) return read;  // targets are checked before a byte moves
  placing.began = true;
  for (const Target& target : *targets) placing.placed.insert(target.name);
  if (!read || !options.read_rest) return read;
  // What the caller reads itself also belongs to the version: damage there is damage of the version.
  auto rest = options.read_rest(checkpoint, placing.on_progress);
  if (!rest && rest.error().kind != ErrorKind::kCorrupt) return refuse(std::move(rest).error());
  return rest;
}

// Work that the trainer has queued may still write to the targets, or read their old values.
Status Restorer::wait_for_targets(const std::vector<Target>& targets, const std::vector<StreamRef>& after) {
  std::set<int> ordinals;
  std::vector<const void*> on_host;
  for (const Target& target : targets) {
    if (target.device != kHostDevice) {
      ordinals.insert(target.device);
    } else if (target.data != nullptr) {
      on_host.push_back(target.data);
    }
  }
  for (const int ordinal : ordinals) {
    SW_ASSIGN(AsyncDevice* const device, shared_.devices.cuda(ordinal));
    SW_ASSIGN(const auto idle, device->record_event(streams_on(after, ordinal)));
    SW_TRY(idle->wait());
  }
  return wait_for_pinned(on_host, after, shared_.devices, "restore()");
}

// From here on this run continues that version, under an attempt of its own.
void Restorer::use_restored(const VersionInfo& version, const LiveVersions::Seen& seen) {
  shared_.replicas_compared.lock()->reset();
  if (shared_.memory) shared_.memory->note_restored(name_of(version));
  const auto live = shared_.live.lock();  // over both, as Planner::ensure_attempt()
  live->go_on_from(version, seen);
  if (shared_.turns) shared_.turns->begin_anew();
}

// Copies back to tier 0 what it lacks of this version, in the background.
void Restorer::begin_repair(const RestoreSource& source, const VersionInfo& version) {
  // What no tier has yet, MemoryTier writes.
  if (shared_.memory && shared_.memory->is_only_in_memory(name_of(version))) return;
  if (auto order = source.repair_order(name_of(version))) repairs_.add(std::move(*order), version);
}

Result<std::optional<Restored>> Restorer::restore_together(RestoreSource& source, const RestoreOptions& options,
                                                           const Plan& plan) {
  using Agreement = RestoreProtocol;
  SW_TRY(protocol_->rendezvous({}));
  if (options_.node_local) SW_TRY(source.exchange(restore_calls_.made + 1));
  source.share_listings(restore_calls_.made + 1);
  Agreement agreement(*protocol_, *shared_.transport, *shared_.clock, restore_calls_);

  Candidates found;
  bool again = false;
  const auto list_versions = [&] {
    Agreement::Offer offer{.step = options.step, .versions = {}, .error = {}};
    Result<Candidates> listed = again ? Candidates() : candidates_in_memory(source, options.step);
    // Others may not have it in memory: then all ranks ask all tiers.
    again = true;
    if (listed && !listed->from_memory) listed = candidates(source, options.step);
    if (!listed) {
      offer.error = listed.error();
      return offer;
    }
    found = std::move(*listed);
    for (const CatalogEntry& entry : found.versions) offer.versions.push_back(entry.name);
    // With a directory on each node, only a rank of this node can tell the others what is there.
    if (found.versions.empty() || (options_.node_local && !source.reached_tier_0()))
      offer.error = source.unreachable_tier_error();
    return offer;
  };

  Placing placing;
  placing.on_progress = [&] { agreement.note_progress(); };
  std::size_t told = 0;  // damaged versions already in the log
  protocol_->begin_restore();
  SW_ASSIGN(Agreement::Choice choice, agreement.begin(list_versions()));
  for (;;) {
    for (; told < choice.damaged.size(); ++told)
      log_.error("a damaged checkpoint is passed over by all ranks: {}", choice.damaged[told]);
    for (const std::string& version : choice.unseen)
      log_.warn("some ranks do not see an older checkpoint; it is kept: {}", version);
    switch (choice.kind) {
      case Agreement::Choice::Kind::kTry: break;
      case Agreement::Choice::Kind::kDone: {
        const auto entry = std::ranges::find(found.versions, choice.version, &CatalogEntry::name);
        const std::vector<SetAside> passed_over = set_aside_of(choice);
        use_restored(entry->info, {.catalog = found.catalog,
                                   .passed_over = passed_over,
                                   .step_asked_for = options.step.has_value(),
                                   .tier_0 = source.reached_tier_0()});
        shared_.live.lock()->adopt_unseen(choice.version, choice.seen);
        protocol_->finish_restore({choice.round, choice.version}, choice.announcements);
        source.settle(choice.version);
        if (!found.from_memory) begin_repair(source, entry->info);
        return std::optional<Restored>(Restored{entry->info, std::move(choice.damaged)});
      }
      case Agreement::Choice::Kind::kNothing: protocol_->fail_restore(); return nothing(options, found.catalog);
      case Agreement::Choice::Kind::kListAgain: {
        log_.warn("the ranks do not see the same checkpoints; all ranks list the directory again");
        SW_ASSIGN(choice, agreement.list_again(list_versions()));
        continue;
      }
      case Agreement::Choice::Kind::kFailed:
        protocol_->fail_restore();
        if (choice.error.path.empty()) choice.error.path = options_.path;
        if (placing.began) choice.error.message += kUndefinedState;
        return fail(std::move(choice.error));
    }

    const auto entry = std::ranges::find(found.versions, choice.version, &CatalogEntry::name);
    const Status status = entry != found.versions.end()
                              ? place_version(source, *entry, options, plan, placing)
                              : fail(ErrorKind::kNotFound, "this rank does not see the version", options_.path);
    auto verdict = Agreement::Verdict::kGood;
    if (!status) {
      const bool passable =
          is_damage(status.error()) && !placing.refusal && options_.on_damage == OnDamage::kFallback && !options.step;
      verdict = passable ? Agreement::Verdict::kDamaged : Agreement::Verdict::kRefused;
    }
    SW_ASSIGN(choice, agreement.next(verdict, status ? Error{} : status.error()));
  }
}

}  // namespace slackwater
