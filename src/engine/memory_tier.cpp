#include "engine/memory_tier.hpp"

#include <algorithm>
#include <chrono>
#include <ranges>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "base/units.hpp"
#include "version/attempt.hpp"

namespace slackwater {
namespace {

// Memory that is a little too small costs less than touching all of it again, and it holds a version.
bool fits(const RegionShape& shape, std::uint64_t slab_bytes, std::uint32_t slab_count) {
  const std::uint64_t reach = std::uint64_t{shape.slab_count} + shape.slab_count / 8;
  return shape.slab_bytes == slab_bytes && slab_count <= reach && shape.slab_count <= 2 * std::uint64_t{slab_count};
}

}  // namespace

void end_earlier_keeper(const Options& options, FileSystem& fs, const Log& log) {
  const KeeperSettings earlier{.directory = options.path, .rank = options.rank};
  wait_for_flush(earlier, options.stall_timeout);  // the step that it writes is restored from disk then
  if (const auto peeked = peek_at_keeper(earlier); peeked && *peeked) {
    const auto region = Region::open((*peeked)->memory);
    const auto step = region ? unsaved_step(fs, options.path, *region) : std::nullopt;
    if (step)
      log.warn(
          "step {} was only in the memory of a keeper, and is given up: this run has no memory tier, and the keeper {}",
          *step,
          region->shape().world > 1 ? "writes no step of several ranks"
                                    : "could not write it (its log is in .slackwater)");
    if (!region)
      log.warn("a keeper that this release does not understand is ended, and its memory is released: {}",
               region.error().to_string());
  }
  release_stale_keeper(earlier);
}

MemoryTier::MemoryTier(const Options& options, FileSystem& fs, const Clock& clock, Log log)
    : options_(options), fs_(fs), log_(std::move(log)), flush_(fs, clock, options.path, log_) {}

KeeperSettings MemoryTier::settings(std::uint32_t rank) const {
  return {.directory = options_.path, .rank = rank, .program = options_.keeper, .keep_for = options_.memory_timeout};
}

void MemoryTier::warn_once(const Error& error) {
  if (std::exchange(warned_, true)) return;
  log_.warn("there is no memory tier, and training goes on without it: {}", error.to_string());
}

void MemoryTier::attach() {
  const std::lock_guard lock(mutex_);
  if (leaves_to_other_run(options_.stall_timeout)) return;
  auto attached = KeeperClient::attach(settings(options_.rank));
  if (!attached) return warn_once(attached.error());
  if (!*attached) return;
  client_ = std::move(**attached);
  take_over();
}

void MemoryTier::take_over() {
  if (!client_->memory()) return;
  auto region = Region::open(client_->memory());
  if (!region) return log_.info("ignoring the memory of an earlier trainer: {}", region.error().to_string());
  if (region->shape().rank != options_.rank || region->shape().world != options_.world) return;
  slabs_ = std::make_shared<KeptSlabs>(std::make_shared<Region>(std::move(*region)), options_.memory_versions, log_);
}

// True: there is a keeper of a run with another number of ranks, and it has what nobody else has. To attach to it would
// stop its flush, and its memory is of no use here. `wait`: for the end of that flush.
bool MemoryTier::leaves_to_other_run(std::chrono::milliseconds wait) {
  const KeeperSettings own = settings(options_.rank);
  auto peeked = peek_at_keeper(own);
  if (!peeked || !*peeked) return false;
  auto region = Region::open((*peeked)->memory);
  if (region && region->shape().world == options_.world && region->shape().rank == options_.rank) return false;
  wait_for_flush(own, wait);
  if (!region) {
    // One of another release. It knows how to flush what it holds, and only it can tell whether that is done.
    peeked = peek_at_keeper(own);
    const bool flushing = peeked && *peeked && (*peeked)->flushing;
    log_.warn("{}: {}",
              flushing ? "a keeper that this release does not understand still writes a step, and is left alone"
                       : "a keeper that this release does not understand is ended, and its memory is released",
              region.error().to_string());
    if (!flushing) release_stale_keeper(own);
    return flushing;
  }
  other_ = std::make_shared<const Region>(std::move(*region));
  if (const auto step = unsaved_step(fs_, options_.path, *other_))
    log_.warn(
        "step {} is only in the memory of a keeper, and was saved by {} ranks: restart with as many to restore it; "
        "after the first save of this run it is gone",
        *step, other_->shape().world);
  return !end_other_run();
}

// Ends the keeper of a run with another number of ranks. False: a step is only in its memory.
bool MemoryTier::end_other_run() {
  if (other_ && unsaved_step(fs_, options_.path, *other_)) return false;
  release_stale_keeper(settings(options_.rank));
  other_.reset();
  return true;
}

std::vector<RankPart> MemoryTier::parts_of(const Region::Kept& own) const {
  std::vector<RankPart> parts;
  for (std::uint32_t rank = 0; rank < options_.world; ++rank) {
    if (rank == options_.rank) {
      parts.push_back({slabs_->region(), own.entry, own.version});
      continue;
    }
    auto peeked = peek_at_keeper(settings(rank));
    if (!peeked || !*peeked) return {};
    auto opened = Region::open(std::move((*peeked)->memory));
    if (!opened) return {};
    const auto region = std::make_shared<const Region>(std::move(*opened));
    const auto all = region->kept();
    const auto name_of_kept = [](const Region::Kept& each) { return each.version.name; };
    const auto same = std::ranges::find(all, own.version.name, name_of_kept);
    if (same == all.end() || same->version.world != options_.world || same->version.rank != rank) return {};
    parts.push_back({region, same->entry, same->version});
  }
  return parts;
}

std::vector<CatalogEntry> MemoryTier::versions(const Catalog& catalog) {
  end_flush();  // of an earlier restore
  const std::lock_guard lock(mutex_);
  files_ = std::make_unique<KeptFiles>(options_.path, fs_);
  offered_.clear();
  only_in_memory_.clear();
  std::vector<CatalogEntry> entries;
  const auto& newest = catalog.newest_attempt;
  // Other ranks are asked only if they are all on this machine.
  const bool all_here = options_.world == 1 || options_.world == options_.local_ranks;
  if (!slabs_ || !newest || newest->world != options_.world || options_.rank >= newest->members.size() || !all_here)
    return entries;
  newest_member_ = newest->members[options_.rank];
  for (const Region::Kept& kept : slabs_->region()->kept()) {
    const VersionName& name = kept.version.name;
    // The attempts tell whether this is what the directory would go on from. A run without a memory tier may have been
    // here since, or a rollback.
    if (std::ranges::find(kept.members, newest_member_) == kept.members.end()) {
      log_.info("step {} in the keeper's memory is of an earlier run and is not used", name.step);
      continue;
    }
    const auto on_disk = std::ranges::find(catalog.entries, name, &CatalogEntry::name);
    const bool known = on_disk != catalog.entries.end();
    if (known && (on_disk->state == VersionState::kAborted || on_disk->state == VersionState::kReplaced)) continue;
    const std::vector<RankPart> parts = parts_of(kept);
    if (parts.empty()) continue;
    auto info = files_->add(parts);
    if (!info) {
      log_.warn("step {} in the keeper's memory cannot be used: {}", name.step, info.error().to_string());
      continue;
    }
    offered_.insert(name);
    // By the keeper, which does not change the table.
    if (known && on_disk->state == VersionState::kLive) slabs_->mark_committed(name);
    if (!known || !on_disk->adoptable())
      only_in_memory_.emplace(name, Unsaved{.parts = parts, .member = kept.members[0]});
    CatalogEntry entry;
    entry.name = name;
    entry.state = VersionState::kLive;
    entry.current = true;
    entry.info = std::move(*info);
    if (known) entry.info.pinned = on_disk->info.pinned;
    entries.push_back(std::move(entry));
  }
  return entries;
}

FileSystem* MemoryTier::files_of(const VersionName& name) const {
  const std::lock_guard lock(mutex_);
  return offered_.contains(name) ? files_.get() : nullptr;
}

void MemoryTier::note_restored(const VersionName& name) {
  std::optional<Unsaved> unsaved;
  bool hangs = false;
  {
    const std::lock_guard lock(mutex_);
    restored_ = name;
    hangs = client_ && client_->earlier_flush_hangs();
    const auto found = only_in_memory_.find(name);
    if (found != only_in_memory_.end() && options_.rank == 0) unsaved = found->second;
  }
  if (!unsaved) return;
  if (hangs) {
    flush_.refuse(name.step, {.kind = ErrorKind::kBusy,
                              .message = "the keeper was writing it, and one of its file operations hangs",
                              .path = options_.path,
                              .retryable = true});
    return;
  }
  flush_.begin(std::move(unsaved->parts), std::move(unsaved->member), [this](const Manifest& manifest) {
    {
      const std::lock_guard lock(mutex_);
      if (slabs_) slabs_->mark_committed({manifest.step, manifest.attempt});
    }
    if (on_flushed_) on_flushed_(manifest);
  });
}

bool MemoryTier::is_only_in_memory(const VersionName& name) const {
  const std::lock_guard lock(mutex_);
  return only_in_memory_.contains(name);
}

// The copies of the next step wait for this, so it is bounded: the fence must not wait for longer than stall_timeout,
// and other ranks for longer than commit_timeout.
void MemoryTier::end_flush() {
  const auto limit = std::min(options_.stall_timeout, options_.commit_timeout) / 2;
  if (flush_.wait(std::chrono::steady_clock::now() + limit)) return;
  log_.warn(
      "a step that was restored from memory is not on disk after {}: until the next step is committed, it is only in "
      "memory",
      format_seconds(std::chrono::duration<double>(limit).count()));
  flush_.give_up("it was not written in time");
}

std::string MemoryTier::begin_attempt(std::uint64_t epoch, std::string id) {
  // First: once the new attempt is claimed, nobody can commit the step that it goes on from. And slabs may be filled
  // then that the flush still reads.
  end_flush();
  const std::lock_guard lock(mutex_);
  if (epoch_ == epoch) return id_;  // the claim is tried again
  epoch_ = epoch;
  id_ = id.empty() ? random_id() : std::move(id);
  files_.reset();  // unmaps the memory of other ranks
  offered_.clear();
  if (slabs_) {
    // Before the claim. If the claim came first, a crash in between would leave versions that the new attempt went back
    // behind (a rollback), or lose the one that it continues.
    slabs_->drop([&](const VersionName& name) { return name != restored_; });
    if (restored_ && !newest_member_.empty()) slabs_->set_next_owner(*restored_, newest_member_, id_);
  }
  continued_ = std::exchange(restored_, std::nullopt);
  for (auto& [name, unsaved] : only_in_memory_) unsaved.parts.clear();
  return id_;
}

void MemoryTier::settle_adopted(std::vector<VersionName>& adopted) const {
  std::vector<VersionName> unsure;
  std::optional<VersionName> continued;
  {
    const std::lock_guard lock(mutex_);
    continued = continued_;
    for (const auto& [name, unsaved] : only_in_memory_) unsure.push_back(name);
  }
  for (const VersionName& name : unsure) {
    // It may have been committed after the versions were listed: the flush has ended.
    const auto manifest = read_manifest(fs_, options_.path, name);
    // A manifest that cannot be read now may be that of a commit.
    const bool gone = manifest ? manifest->decision == Decision::kAbort : manifest.error().kind == ErrorKind::kNotFound;
    if (manifest && !gone) {  // by rank 0, which tells only its own keeper
      const std::lock_guard lock(mutex_);
      if (slabs_) slabs_->mark_committed(name);
    }
    const auto listed = std::ranges::find(adopted, name);
    if (gone && listed != adopted.end()) adopted.erase(listed);
    if (!gone && listed == adopted.end() && continued && name.step <= continued->step) adopted.push_back(name);
  }
}

std::uint64_t MemoryTier::attached_bytes() const {
  const std::lock_guard lock(mutex_);
  if (!slabs_) return 0;
  const RegionShape& shape = slabs_->region()->shape();
  return shape.slab_bytes * shape.slab_count;
}

bool MemoryTier::can_prepare(std::uint32_t slab_count) const {
  const std::lock_guard lock(mutex_);
  if (other_) return false;
  if (!slabs_) return true;
  const Region& region = *slabs_->region();
  return fits(region.shape(), options_.slab_bytes, slab_count) || region.kept().empty();
}

std::shared_ptr<KeptSlabs> MemoryTier::memory_for(std::uint32_t slab_count) {
  const std::lock_guard lock(mutex_);
  // The keeper may not have answered attach(): it was stopped, or the trainer before had not ended yet. What it holds
  // counts for as much now, because restore() may still come.
  const bool left = other_ ? !end_other_run() : !client_ && leaves_to_other_run(std::chrono::milliseconds(0));
  if (left) {
    warn_once({.kind = ErrorKind::kBusy, .message = "a keeper holds a step of a run with another number of ranks"});
    return nullptr;
  }
  if (!client_) {
    auto started = KeeperClient::start(settings(options_.rank));
    if (!started) {
      warn_once(started.error());
      return nullptr;
    }
    client_ = std::move(*started);
    take_over();
    // As begin_attempt() does, if it came first: nobody can go on from the rest any more.
    if (slabs_ && epoch_)
      slabs_->drop([&](const VersionName& name) { return name != continued_ && name != restored_; });
  }
  if (slabs_) {
    const RegionShape& shape = slabs_->region()->shape();
    if (fits(shape, options_.slab_bytes, slab_count)) return slabs_;
    const std::string size = format_bytes(shape.slab_bytes * shape.slab_count);
    if (const auto step = newest_unsaved()) {
      // Dropping it would lose it. A pool of another size does for this run.
      if (shape.slab_bytes == options_.slab_bytes) {
        log_.warn("the keeper's memory of {} stays as it is, because step {} is only there", size, *step);
        return slabs_;
      }
      warn_once({.kind = ErrorKind::kBusy,
                 .message = fmt::format("step {} is only in the keeper's memory, which has other slabs", *step)});
      return nullptr;
    }
    log_.info("the keeper's memory of {} is made again for another state", size);
    slabs_->drop([](const VersionName&) { return true; });
    slabs_.reset();
  }
  const RegionShape shape{
      .slab_bytes = options_.slab_bytes, .slab_count = slab_count, .rank = options_.rank, .world = options_.world};
  auto memory = client_->make_memory(Region::size_bytes(shape));
  auto region = memory ? Region::format(std::move(*memory), shape) : fail(memory.error());
  if (!region) {
    warn_once(region.error());
    return nullptr;
  }
  slabs_ = std::make_shared<KeptSlabs>(std::make_shared<Region>(std::move(*region)), options_.memory_versions, log_);
  return slabs_;
}

void MemoryTier::mark_committed(const VersionName& name) {
  const std::lock_guard lock(mutex_);
  committed_ = name;
  if (slabs_) slabs_->mark_committed(name);
}

void MemoryTier::drop(const std::vector<VersionName>& names) {
  const std::lock_guard lock(mutex_);
  if (slabs_) slabs_->drop([&](const VersionName& name) { return std::ranges::find(names, name) != names.end(); });
}

void MemoryTier::keep_after_close() {
  const std::lock_guard lock(mutex_);
  keep_after_close_ = true;
}

// The newest step that would be lost with the memory. Whatever is older than what this run has committed is not.
std::optional<std::uint64_t> MemoryTier::newest_unsaved() const {
  if (!slabs_) return std::nullopt;
  const auto all = slabs_->region()->kept();
  for (const Region::Kept& kept : all | std::views::reverse) {
    const VersionName& name = kept.version.name;
    if (committed_ && std::pair(name.attempt, name.step) <= std::pair(committed_->attempt, committed_->step)) continue;
    if (is_unsaved(fs_, options_.path, kept)) return name.step;
  }
  return std::nullopt;
}

Status MemoryTier::close(bool all_committed) {
  const std::lock_guard lock(mutex_);
  const bool flushed = options_.rank == 0 && !only_in_memory_.empty() && continued_ == std::nullopt;
  files_.reset();
  only_in_memory_.clear();
  const bool done = all_committed && !keep_after_close_;
  std::optional<std::uint64_t> unsaved = done ? newest_unsaved() : std::nullopt;
  const std::shared_ptr<const Region> region = slabs_ ? slabs_->region() : nullptr;
  slabs_.reset();
  if (client_ && done && !unsaved) {
    if (const Status released = client_->release(); !released)
      log_.warn("the keeper did not release its memory; it will do so after memory_timeout: {}",
                released.error().to_string());
  }
  client_.reset();  // the keeper takes this for the end of the trainer, and flushes what is not committed
  if (!done) return {};
  // Other ranks may have left before the step that they restored was committed. Their keepers wait for nobody now.
  if (flushed && !unsaved)
    for (std::uint32_t rank = 1; rank < options_.world; ++rank) release_stale_keeper(settings(rank));
  if (!unsaved) return {};
  // Or rank 0 has committed it by now, and found this rank's keeper still in use.
  if (options_.rank != 0 && !unsaved_step(fs_, options_.path, *region)) {
    release_stale_keeper(settings(options_.rank));
    return {};
  }
  const std::string held = fmt::format("the keeper holds it for {} (memory_timeout)",
                                       format_seconds(std::chrono::duration<double>(options_.memory_timeout).count()));
  if (const auto error = flush_.error()) {
    Error kept = *error;
    kept.message = fmt::format(
        "step {} is only in memory, because it could not be written; {}, so start again within "
        "that time: {}",
        *unsaved, held, error->message);
    return fail(std::move(kept));
  }
  log_.warn("step {} is not on disk yet; {}", *unsaved, held);
  return {};
}

}  // namespace slackwater
