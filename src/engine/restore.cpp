// Restore, pin, remove: what the trainer's thread does with versions that exist.
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
  SW_TRY(usable());
  SW_TRY(wait_idle(Level::kCommitted, {}));
  if (fleet_) return restore_together(options, plan);
  Catalog catalog;
  {
    std::lock_guard lock(versions_mutex_);
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
  for (const CatalogEntry& entry : candidates) {
    auto status = place_version(entry, options, plan, placing);
    if (status) {
      restored.version = entry.info;
      use_restored(entry.info, catalog);
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
  const ReaderParts parts{.fs = fs_.get(),
                          .pool = idle_pool(),
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
Pool* Engine::Impl::idle_pool() {
  std::lock_guard lock(mutex_);
  if (!pipeline_ || pipeline_stopped_ || pipeline_->pool().free_count() == 0) return nullptr;
  return &pipeline_->pool();
}

// From here on this run continues that version: what came after it is superseded at the next commit.
void Engine::Impl::use_restored(const VersionInfo& version, const Catalog& catalog) {
  std::lock_guard lock(mutex_);
  attempt_.reset();
  replicas_compared_ = 0;
  to_adopt_.clear();
  for (const VersionInfo& counting : catalog.counting()) {
    if (counting.step <= version.step) to_adopt_.push_back({counting.step, counting.attempt});
  }
  last_step_ = version.step;
  begin_turns_anew();
  ++epoch_;
}

Result<VersionName> Engine::Impl::find_version(std::uint64_t step) const {
  const std::vector<VersionInfo> known = versions();
  for (const VersionInfo& version : known) {
    if (version.step == step) return VersionName{version.step, version.attempt};
  }
  return fail(ErrorKind::kNotFound,
              fmt::format("there is no checkpoint of step {}; there are: {}", step, listed(known)), options_.path);
}

Status Engine::Impl::pin(std::uint64_t step) {
  SW_TRY(usable());
  SW_ASSIGN(const VersionName name, find_version(step));
  std::lock_guard lock(versions_mutex_);
  SW_TRY(versions_->pin(name));
  refresh_catalog();
  return {};
}

Status Engine::Impl::remove(std::uint64_t step) {
  SW_TRY(usable());
  if (fleet_ && !fleet_->leads())
    return fail(ErrorKind::kInvalidArgument, "only rank 0 may delete a checkpoint", options_.path);
  SW_ASSIGN(const VersionName name, find_version(step));
  std::lock_guard lock(versions_mutex_);
  SW_TRY(versions_->remove(name));
  refresh_catalog();
  return {};
}

}  // namespace slackwater
