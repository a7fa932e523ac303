// Restore, remove: what the trainer's thread does with versions that exist.
#include <algorithm>
#include <set>
#include <utility>

#include "base/result.hpp"
#include "engine/engine_impl.hpp"
#include "engine/restorable.hpp"
#include "restore/checkpoint_reader.hpp"

namespace slackwater {
namespace {

// Reads in flight hide the latency of storage. Memory that is there already may be used more freely.
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

}  // namespace

Result<std::optional<Restored>> Engine::Impl::restore(const RestoreOptions& options, const Plan& plan) {
  Restoring restoring(*this);
  SW_TRY(restoring.begin());
  SW_TRY(wait_idle(Level::kCommitted, {}));
  // What it is deleting must not be chosen, nor what is chosen be deleted.
  if (cleaner_ && !cleaner_->wait_idle({})) return fail(ErrorKind::kInternal, "the cleaner did not end", options_.path);
  if (fleet_) return restore_together(options, plan);
  Catalog catalog;
  {
    std::lock_guard lock(versions_mutex_);
    SW_TRY(usable());  // close() may have come meanwhile, and taken the store away
    SW_ASSIGN(catalog, versions_->scan());
  }

  std::vector<CatalogEntry> candidates = restorable(catalog, options.step);
  std::ranges::reverse(candidates);
  if (candidates.empty()) {
    if (!options.step) return std::optional<Restored>();
    return fail(
        ErrorKind::kNotFound,
        fmt::format("there is no checkpoint of step {}; there are: {}", *options.step, listed(catalog.counting())),
        options_.path);
  }

  Restored restored;
  Placing placing;
  std::vector<SetAside> passed_over;
  for (const CatalogEntry& entry : candidates) {
    const auto known = std::ranges::find(options.passed_over, entry.name.step, &PassedOver::step);
    auto status = known == options.passed_over.end() ? place_version(entry, options, plan, placing)
                                                     : Status(fail(ErrorKind::kCorrupt, known->why));
    if (status) {
      restored.version = entry.info;
      use_restored(entry.info, catalog, passed_over);
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
    passed_over.push_back({entry.name, status.error().to_string()});
    restored.damaged.push_back(fmt::format("step {}: {}", entry.name.step, status.error().to_string()));
  }

  std::string all;
  for (const std::string& damage : restored.damaged) all += "\n  " + damage;
  return fail(ErrorKind::kCorrupt,
              fmt::format("no checkpoint could be restored{}:{}", placing.began ? kUndefinedState : "", all),
              options_.path);
}

// Opens one version, asks where its tensors go, and puts them there.
Status Engine::Impl::place_version(const CatalogEntry& entry, const RestoreOptions& options, const Plan& plan,
                                   Placing& placing) {
  const auto refuse = [&](Error error) {
    placing.refusal = error;
    return fail(std::move(error));
  };
  placing.on_progress();
  if (entry.error) return fail(*entry.error);
  const auto lender = idle_pipeline();
  const ReaderParts parts{.fs = fs_.get(),
                          .pool = lender ? &lender->pool() : nullptr,
                          .devices = &devices_,
                          .viewer = Viewer{.rank = options_.rank, .world = options_.world},
                          .on_progress = placing.on_progress};
  const ReadOptions read_options{.buffer_bytes = parts.pool != nullptr ? kRestoreFromPoolBytes : kRestoreBufferBytes,
                                 .io_backend = options_.io_backend,
                                 .direct_io = options_.direct_io,
                                 .log = options_.log};
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
         options_.path});
  }
  if (auto ready = wait_for_targets(*targets, options.after); !ready) return refuse(std::move(ready).error());
  auto read = checkpoint.read(*targets);
  if (!read && is_refusal(read.error())) return read;  // targets are checked before a byte moves
  placing.began = true;
  for (const Target& target : *targets) placing.placed.insert(target.name);
  return read;
}

// What the trainer has queued may still write to the targets, or read their old values.
Status Engine::Impl::wait_for_targets(const std::vector<Target>& targets, const std::vector<StreamRef>& after) {
  std::set<int> ordinals;
  for (const Target& target : targets) ordinals.insert(target.device);
  ordinals.erase(kHostDevice);
  for (const int ordinal : ordinals) {
    SW_ASSIGN(AsyncDevice* const device, devices_.cuda(ordinal));
    SW_ASSIGN(const auto idle, device->mark(streams_on(after, ordinal)));
    SW_TRY(idle->wait());
  }
  return {};
}

// Memory that was touched and registered for saving serves restoring too; slabs held by a write that never ends do not.
std::shared_ptr<Pipeline> Engine::Impl::idle_pipeline() {
  std::lock_guard lock(mutex_);
  if (!pipeline_ || pipeline_stopped_ || pipeline_->pool().free_count() == 0) return nullptr;
  return pipeline_;
}

// From here on this run continues that version: what came after it is superseded at the next commit.
// Except what a damaged version held: that is set aside, and kept.
void Engine::Impl::use_restored(const VersionInfo& version, const Catalog& catalog,
                                const std::vector<SetAside>& passed_over) {
  std::lock_guard lock(mutex_);
  attempt_.reset();
  replicas_compared_.reset();
  to_adopt_.clear();
  const VersionName chosen{version.step, version.attempt};
  for (const CatalogEntry& entry : catalog.entries) {
    // Whatever exists, whether or not it can be read now.
    if ((entry.belongs() && entry.name.step <= version.step) || entry.name == chosen) to_adopt_.push_back(entry.name);
  }
  set_aside_ = catalog.set_aside();
  set_aside_.insert(set_aside_.end(), passed_over.begin(), passed_over.end());
  std::erase_if(set_aside_, [&](const SetAside& aside) { return aside.version == chosen; });
  last_step_ = version.step;
  begin_turns_anew();
  ++epoch_;
}

Result<VersionName> Engine::Impl::find_version(std::uint64_t step) const {
  const std::vector<VersionInfo> known = versions();
  for (const VersionInfo& version : known) {
    if (version.step == step) return name_of(version);
  }
  return fail(ErrorKind::kNotFound,
              fmt::format("there is no checkpoint of step {}; there are: {}", step, listed(known)), options_.path);
}

Status Engine::Impl::remove(std::uint64_t step) {
  SW_TRY(usable());
  if (fleet_ && !fleet_->leads())
    return fail(ErrorKind::kInvalidArgument, "only rank 0 may delete a checkpoint", options_.path);
  // Not versions_mutex_: no commit waits for a delete.
  const auto nobody_else_deletes = cleaner_ ? cleaner_->hold() : std::unique_lock<std::mutex>();
  const std::shared_lock alive(versions_alive_);
  SW_TRY(usable());  // still
  SW_ASSIGN(const Catalog catalog, versions_->scan());
  // A step may be there several times: saved again after a rollback, and a damaged one of before that was set aside. Damaged
  // ones go first, and alone: whoever wants the good one gone, too, calls again.
  std::vector<VersionName> names;
  const auto add_all = [&](VersionState state) {
    for (const CatalogEntry& entry : catalog.entries)
      if (entry.name.step == step && entry.state == state) names.push_back(entry.name);
  };
  add_all(VersionState::kSetAside);
  if (const auto live = find_version(step); names.empty() && live) names.push_back(*live);
  if (names.empty()) add_all(VersionState::kUnreadable);
  if (names.empty()) return fail(find_version(step).error());
  for (const VersionName& name : names) {
    SW_TRY(versions_->remove(name, "delete() was called"));
    std::lock_guard state_lock(mutex_);
    std::erase_if(set_aside_, [&](const SetAside& aside) { return aside.version == name; });
    std::erase_if(counting_, [&](const VersionInfo& version) { return name_of(version) == name; });
  }
  return {};
}

}  // namespace slackwater
