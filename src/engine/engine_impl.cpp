#include "engine/engine_impl.hpp"

#include <algorithm>
#include <shared_mutex>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "engine/skip_thread.hpp"
#include "version/catalog.hpp"
#include "version/delete_notes.hpp"

namespace slackwater {

Engine::Impl::Impl(Options options, EngineDependencies parts, std::unique_ptr<VersionStore> versions,
                   const Catalog& catalog, Log log)
    : shared_(std::move(options), std::move(parts), std::move(versions), catalog, std::move(log)),
      fork_guard_([status = shared_.engine_status.get()] { status->disowned.store(true, std::memory_order_release); }),
      pipeline_maker_(shared_),
      planner_(shared_, pipeline_maker_),
      committer_(shared_),
      saver_(shared_, [this] { return start_threads(); }),
      restorer_(shared_, pipeline_maker_) {
  shared_.devices.open_active();
  pipeline_maker_.at_open();
}

Engine::Impl::~Impl() = default;

Status Engine::Impl::start_threads() {
  try {
    planner_.start();
    committer_.start();
    shared_.cleaner.start();
    shared_.promotions.start();
    if (shared_.turns) shared_.turns->start();
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

Result<std::optional<Snapshot>> Engine::Impl::save(std::uint64_t step, State state) {
  return saver_.save(step, std::move(state));
}

Result<std::optional<Restored>> Engine::Impl::restore(const RestoreOptions& options, const Plan& plan) {
  SW_TRY(has_directory());
  auto restored = restorer_.restore(options, plan);
  if (restored && *restored) saver_.go_on_from((*restored)->version.step);
  return restored;
}

Status Engine::Impl::has_directory() const {
  if (!options_.path.empty()) return {};
  return fail(ErrorKind::kInvalidArgument, "this engine has no directory, and saves only parts: set Options::path");
}

Status Engine::Impl::wait(Level level, std::optional<std::chrono::milliseconds> timeout) {
  if (disowned()) return fail(disowned_error());
  SW_TRY(shared_.jobs.wait_idle(level, timeout));
  const BackgroundErrors unreported = std::exchange(*shared_.errors.lock(), {});
  if (unreported.first()) return fail(unreported.in_words());
  return {};
}

Status Engine::Impl::wait_copied(std::optional<std::chrono::milliseconds> timeout) {
  const auto deadline = timeout ? std::optional(EngineStatus::Instant::now() + *timeout) : std::nullopt;
  SW_TRY(wait(Level::kCommitted, timeout));
  return shared_.promotions.wait_idle(deadline, options_.copy_timeout);
}

Status Engine::Impl::fence(std::span<const StreamRef> streams) {
  if (disowned()) return fail(disowned_error());
  Status first;
  for (const auto& snapshot : shared_.jobs.snapshots()) {
    if (auto status = snapshot->fence(streams); !status && first) first = std::move(status);
  }
  return first;
}

std::optional<Error> Engine::Impl::background_error() const {
  if (disowned()) return disowned_error();
  return shared_.errors.lock()->first();
}

EngineStats Engine::Impl::stats() const {
  if (disowned()) return {};
  EngineStats stats = shared_.pipeline.lock()->stats();
  stats.snapshots_committed = shared_.counts.committed;
  stats.snapshots_failed = shared_.counts.failed;
  stats.snapshots_skipped = shared_.counts.skipped;
  return stats;
}

std::vector<VersionInfo> Engine::Impl::versions() const {
  if (disowned()) return {};
  if (options_.rank != 0) {
    // Rank 0 makes and removes versions, so only the directory knows them. Without the lock of VersionStoreAccess,
    // which sw-commit may hold during syncs.
    const auto catalog = scan_catalog(*shared_.fs, options_.path);
    if (catalog) return catalog->live_versions();
    shared_.log.warn("the checkpoints could not be listed, so versions() returns those known before: {}",
                     catalog.error().to_string());
  }
  return shared_.live.lock()->list();
}

Result<VersionName> Engine::Impl::find_version(std::uint64_t step) const {
  const std::vector<VersionInfo> known = versions();
  for (const VersionInfo& version : known) {
    if (version.step == step) return name_of(version);
  }
  return fail(ErrorKind::kNotFound,
              fmt::format("there is no checkpoint of step {}; there are: {}", step, listed(known)), options_.path);
}

Status Engine::Impl::pin(std::uint64_t step) {
  SW_TRY(shared_.jobs.usable());
  if (const auto snapshot = shared_.jobs.request_pin(step)) {  // sw-commit pins it
    auto error = snapshot->error();
    if (!error) return {};
    error->message = fmt::format("step {} cannot be pinned, because it was not checkpointed: {}", step, error->message);
    return fail(std::move(*error));
  }
  SW_ASSIGN(const VersionName name, find_version(step));
  const auto open = shared_.versions.keep_open();  // instead of the exclusive lock: no commit waits
  SW_TRY(shared_.jobs.usable());                   // again: close() may have come before the lock
  SW_TRY(shared_.versions.without_lock().pin(name));
  shared_.live.lock()->note_pinned(name);
  return {};
}

namespace {

// The run that saved it; empty: neither its manifest nor its attempt's file can be read.
std::string run_of(const EngineShared& shared, const CatalogEntry& entry) {
  if (!entry.run.empty()) return entry.run;
  const auto attempt = read_attempt(*shared.fs, shared.options.path, entry.name.attempt);
  return attempt ? attempt->run : std::string();
}

// First the notes for the lower tiers, then the version: a crash in between leaves it live everywhere, and notes that
// are not in force (version/delete_notes.hpp). The same after an error, unless the version is gone here by then.
Status remove_everywhere(EngineShared& shared, VersionStore& store, const CatalogEntry& entry) {
  const std::string& root = shared.options.path;
  const VersionName& name = entry.name;
  const std::string run = run_of(shared, entry);
  Status noted = shared.promotions.note_delete(name, run);
  // Whoever wants to free space on a full disk must be able to. Then the notes follow as soon as there is some.
  const bool note_later = !noted && noted.error().kind == ErrorKind::kNoSpace;
  if (!noted && !note_later) {
    static_cast<void>(withdraw_void_delete_notes(*shared.fs, root));
    Error error = std::move(noted).error();
    error.message =
        fmt::format("step {} was not deleted, because the note for the lower tiers could not be written: {}", name.step,
                    error.message);
    return fail(std::move(error));
  }
  Status removed = store.remove(name, "delete() was called");
  if (!removed) {
    static_cast<void>(withdraw_void_delete_notes(*shared.fs, root));
    return removed;
  }
  if (note_later) noted = shared.promotions.note_delete(name, run);
  shared.live.lock()->note_removed(name);
  shared.promotions.remove(name, run);
  if (noted) return {};
  Error error = std::move(noted).error();
  error.message = fmt::format(
      "step {} was deleted on tier 0, but the note for the lower tiers could not be written; if one of them still has "
      "the step when this run ends, remove it there with slackwater rm: {}",
      name.step, error.message);
  return fail(std::move(error));
}

}  // namespace

Status Engine::Impl::remove(std::uint64_t step) {
  SW_TRY(shared_.jobs.usable());
  SW_TRY(has_directory());
  if (options_.rank != 0)
    return fail(ErrorKind::kInvalidArgument, "only rank 0 may delete a checkpoint", options_.path);
  const auto nobody_else_deletes = shared_.cleaner.block_deletes();
  const auto open = shared_.versions.keep_open();  // instead of the exclusive lock: no commit waits
  SW_TRY(shared_.jobs.usable());                   // again: close() may have come before the lock
  VersionStore& store = shared_.versions.without_lock();
  SW_ASSIGN(const Catalog catalog, store.scan());
  // A step may exist several times: saved again after a rollback, and a damaged version of it that was set aside. The
  // damaged ones are removed first, and alone. A second call removes the good one.
  std::vector<VersionName> names;
  const auto add_all = [&](VersionState state) {
    for (const CatalogEntry& entry : catalog.entries)
      if (entry.name.step == step && entry.state == state) names.push_back(entry.name);
  };
  add_all(VersionState::kSetAside);
  if (const auto live = find_version(step); names.empty() && live) names.push_back(*live);
  if (names.empty()) add_all(VersionState::kUnreadable);
  if (names.empty()) return fail(find_version(step).error());
  if (shared_.memory) shared_.memory->drop(names);
  for (const VersionName& name : names) {
    const auto entry = std::ranges::find(catalog.entries, name, &CatalogEntry::name);
    shared_.deleted.lock()->insert(name);
    // One that somebody else has removed is not there, and the store says so.
    SW_TRY(entry == catalog.entries.end() ? store.remove(name, "delete() was called")
                                          : remove_everywhere(shared_, store, *entry));
  }
  return {};
}

}  // namespace slackwater
